// Delete Profile nodes that still belong to nothing.
//
// mode: writes
// param rows: map[] — id
// column removed: integer — how many
UNWIND $rows AS row
MATCH (n:Profile {id: row.id})
OPTIONAL MATCH (n)-[:OF]->(p:Instance)
WITH n, p
WHERE p IS NULL AND n.state = 'ready'
DETACH DELETE n
RETURN count(*) AS removed
