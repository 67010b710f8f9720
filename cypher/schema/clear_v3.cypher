// Delete some of the nodes that schema 3 wrote for instances and profiles; they are made again.
//
// mode: writes
// column done: integer — how many; 0 when none is left
MATCH (n:OpTime|TaskTime|LaneTime|MemoryTensor|MemoryLevel|Memory|Op|Task|Rank|Group|RankClass)
WITH n LIMIT 2000
DETACH DELETE n
RETURN count(*) AS done
