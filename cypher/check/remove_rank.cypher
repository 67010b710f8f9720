// Delete the ranks of instances that are still not there.
//
// mode: writes
// param rows: map[] — id: that of the instance
// column removed: integer — how many
UNWIND $rows AS row
OPTIONAL MATCH (p:Instance {id: row.id})
WITH row, p
WHERE p IS NULL
MATCH (n:Rank {instance: row.id})
WHERE n.`rank` >= 0
DETACH DELETE n
RETURN count(*) AS removed
