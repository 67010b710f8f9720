// Delete some SymOp nodes of one graph, with their edges.
//
// mode: writes
// param id: string — the graph's id
// param limit: integer — at most so many
// column deleted: integer — how many; 0 when none is left
MATCH (:Graph {id: $id})-[:HAS_OP]->(n:SymOp)
WITH n LIMIT $limit
DETACH DELETE n
RETURN count(*) AS deleted
