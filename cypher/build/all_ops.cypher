// The ops of a graph with all their properties, in the graph's order.
//
// mode: reads
// param id: string — the graph's id
// column op: map — its properties
MATCH (:Graph {id: $id})-[:HAS_OP]->(o:SymOp)
WITH properties(o) AS op
RETURN op
ORDER BY op.number
