// Delete MemoryTensor nodes that still belong to nothing.
//
// mode: writes
// param rows: map[] — id
// column removed: integer — how many
UNWIND $rows AS row
MATCH (n:MemoryTensor {id: row.id})
OPTIONAL MATCH (n)<-[:HOLDS]-(p:Memory)
WITH n, p
WHERE p IS NULL
DETACH DELETE n
RETURN count(*) AS removed
