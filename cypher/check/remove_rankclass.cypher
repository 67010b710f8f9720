// Delete RankClass nodes that still belong to nothing.
//
// mode: writes
// param rows: map[] — id
// column removed: integer — how many
UNWIND $rows AS row
MATCH (n:RankClass {id: row.id})
OPTIONAL MATCH (n)<-[:HAS_CLASS]-(p:Instance)
WITH n, p
WHERE p IS NULL
DETACH DELETE n
RETURN count(*) AS removed
