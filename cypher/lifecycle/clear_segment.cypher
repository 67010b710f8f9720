// Delete some Segment nodes of one profile, with their edges.
//
// mode: writes
// param id: string — the profile's id
// param limit: integer — at most so many
// column deleted: integer — how many; 0 when none is left
MATCH (:Profile {id: $id})-[:HAS_SEGMENT]->(n:Segment)
WITH n LIMIT $limit
DETACH DELETE n
RETURN count(*) AS deleted
