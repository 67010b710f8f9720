// Write ops of a symbolic graph.
//
// mode: writes
// param rows: map[] — the properties of an op, id first
UNWIND $rows AS row
MERGE (n:SymOp {id: row.id})
SET n += row
