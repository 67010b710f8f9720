// Delete LaneTime nodes that still belong to nothing.
//
// mode: writes
// param rows: map[] — id
// column removed: integer — how many
UNWIND $rows AS row
MATCH (n:LaneTime {id: row.id})
OPTIONAL MATCH (n)<-[:HAS_LANE]-(p:Profile)
WITH n, p
WHERE p IS NULL
DETACH DELETE n
RETURN count(*) AS removed
