// The time of each kind of work in a profile's step: sums over all ranks.
//
// mode: reads
// param profile: string — the profile's id
// column type: string — compute, collective or send
// column kind: string — matmul, attention, norm, all_reduce …
// column axis: string? — mesh axis of a message; null for compute
// column phase: string — forward, recompute, backward or optimizer
// column time: integer [ns] — time spent in it
// column exposed: integer [ns] — part of that time in which a rank only communicates
MATCH (:Profile {id: $profile, state: 'ready'})-[:HAS_LANE]->(l:LaneTime)-[:HAS_OP_TIME]->(t:OpTime)
WHERE t.type <> 'recv'
RETURN t.type AS type, t.kind AS kind, t.axis AS axis, t.phase AS phase, sum(l.ranks * t.total) AS time,
  sum(l.ranks * t.exposed) AS exposed
ORDER BY type, kind, axis, phase
