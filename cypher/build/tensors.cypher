// Write tensors of a symbolic graph.
//
// mode: writes
// param rows: map[] — the properties of a tensor, id first
UNWIND $rows AS row
MERGE (n:SymTensor {id: row.id})
SET n += row
