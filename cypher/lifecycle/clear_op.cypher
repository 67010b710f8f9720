// Delete some Op nodes of one instance, with their edges.
//
// mode: writes
// param id: string — the instance's id
// param limit: integer — at most so many
// column deleted: integer — how many; 0 when none is left
MATCH (:Instance {id: $id})-[:HAS_CLASS]->(:RankClass)-[:RUNS]->(n:Op)
WITH n LIMIT $limit
DETACH DELETE n
RETURN count(*) AS deleted
