// The SymOp nodes of one graph.
//
// mode: reads
// param id: string — the graph's id
// column also: string[] — all labels of the node
// column parent: string? — the id of the node that it belongs to
// column values: map — its properties
MATCH (p:Graph {id: $id})-[:HAS_OP]->(n:SymOp)
RETURN labels(n) AS also, p.id AS parent, properties(n) AS values
