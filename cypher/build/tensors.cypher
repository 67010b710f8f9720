// Write tensors of a symbolic graph.
//
// mode: writes
// param graph: string — the graph's id
// param rows: map[] — the properties of a tensor, id first
MATCH (g:Graph {id: $graph})
UNWIND $rows AS row
MERGE (n:SymTensor {id: row.id})
SET n += row
MERGE (n)<-[:HAS_TENSOR]-(g)
