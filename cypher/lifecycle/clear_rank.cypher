// Delete some Rank nodes of one instance, with their edges.
//
// mode: writes
// param id: string — the instance's id
// param limit: integer — at most so many
// column deleted: integer — how many; 0 when none is left
MATCH (n:Rank {instance: $id})
WHERE n.`rank` >= 0
WITH n LIMIT $limit
DETACH DELETE n
RETURN count(*) AS deleted
