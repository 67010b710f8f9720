// Delete Note nodes that still belong to nothing.
//
// mode: writes
// param rows: map[] — id
// column removed: integer — how many
UNWIND $rows AS row
MATCH (n:Note {id: row.id})
OPTIONAL MATCH (n)-[:ABOUT]->(p:Graph|Instance|Profile)
WITH n, p
WHERE p IS NULL
DETACH DELETE n
RETURN count(*) AS removed
