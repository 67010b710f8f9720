// Where the times of two profiles differ: by kind, axis and phase, averages over all ranks. The profiles may be of two
// instances, or of one instance on two systems.
//
// mode: reads
// param profile: string — id of the profile
// param other: string — id or name of the profile that it is compared with
// column type: string — compute, collective or send
// column kind: string — matmul, attention, norm, all_reduce …
// column axis: string? — mesh axis of a message; null for compute
// column phase: string — forward, recompute, backward or optimizer
// column time: integer [ns] — time that a rank spends in it
// column other_time: integer [ns] — the same in the other profile
// column exposed: integer [ns] — part of that time in which the rank only communicates
// column other_exposed: integer [ns] — the same in the other profile
// column critical: integer [ns] — time on the critical path
// column other_critical: integer [ns] — the same in the other profile
// keep: type, kind, axis, time, other_time, exposed, other_exposed
UNWIND [true, false] AS own
WITH own, CASE WHEN own THEN $profile ELSE $other END AS asked
MATCH (p:Profile {id: asked})-[:HAS_LANE]->(l:LaneTime)-[:HAS_OP_TIME]->(t:OpTime)
WHERE t.type <> 'recv'
WITH own, p, t.type AS type, t.kind AS kind, t.axis AS axis, t.phase AS phase,
  sum(l.ranks * t.total) AS time, sum(l.ranks * t.exposed) AS exposed, sum(t.critical) AS critical
WITH own, p.world AS world, type, kind, axis, phase, time, exposed, critical
WITH type, kind, axis, phase,
  sum(CASE WHEN own THEN time / world ELSE 0 END) AS time,
  sum(CASE WHEN own THEN 0 ELSE time / world END) AS other_time,
  sum(CASE WHEN own THEN exposed / world ELSE 0 END) AS exposed,
  sum(CASE WHEN own THEN 0 ELSE exposed / world END) AS other_exposed,
  sum(CASE WHEN own THEN critical ELSE 0 END) AS critical,
  sum(CASE WHEN own THEN 0 ELSE critical END) AS other_critical
WHERE time <> other_time OR exposed <> other_exposed OR critical <> other_critical
RETURN type, kind, axis, phase, time, other_time, exposed, other_exposed, critical, other_critical
ORDER BY CASE WHEN time > other_time THEN time - other_time ELSE other_time - time END DESC, type, kind, axis, phase
