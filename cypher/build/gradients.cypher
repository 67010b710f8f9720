// Connect the gradients of a graph to their weights.
//
// mode: writes
// param rows: map[] — gradient and weight: ids of their tensors
UNWIND $rows AS row
MATCH (d:SymTensor {id: row.gradient})
MATCH (w:SymTensor {id: row.weight})
MERGE (d)-[:GRADIENT_OF]->(w)
