// Write ops of a symbolic graph.
//
// mode: writes
// param graph: string — the graph's id
// param rows: map[] — the properties of an op, id first
MATCH (g:Graph {id: $graph})
UNWIND $rows AS row
MERGE (n:SymOp {id: row.id})
SET n += row
MERGE (n)<-[:HAS_OP]-(g)
