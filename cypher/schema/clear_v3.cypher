// Delete some of the nodes that schema 3 wrote for instances and profiles. Nodes that another process
// has made again have a schema, and stay.
//
// mode: writes
// column done: integer — how many; 0 when none is left
MATCH (w:Instance|Profile)
WHERE w.schema IS NULL
WITH collect(w.id) AS old
MATCH (n:OpTime|TaskTime|LaneTime|MemoryTensor|MemoryLevel|Memory|Op|Task|Rank|Group|RankClass)
WHERE coalesce(n.profile, n.instance) IN old
WITH n LIMIT 2000
DETACH DELETE n
RETURN count(*) AS done
