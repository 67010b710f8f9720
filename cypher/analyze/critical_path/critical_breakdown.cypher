// The parts of a profile's critical path: by pipeline stage, block, kind and axis.
//
// mode: reads
// param profile: string — id of the profile
// column stage: integer — pipeline stage
// column block: string — block of the symbolic op
// column kind: string — matmul, attention, all_gather …
// column axis: string? — mesh axis of communication; null for compute
// column runs: integer — runs on the path
// column ns: integer [ns] — time on the path
// column share: float [ratio] — share of the step
// keep: stage, block, kind, ns, share, axis
MATCH (p:Profile {id: $profile})-[:HAS_LANE]->(l:LaneTime)-[:HAS_OP_TIME]->(t:OpTime)
WHERE t.critical > 0
WITH p.step AS step, l.stage AS stage, t.block AS block, t.kind AS kind, t.axis AS axis,
  sum(t.times_critical) AS runs, sum(t.critical) AS ns
RETURN stage, block, kind, axis, runs, ns, toFloat(ns) / step AS share
ORDER BY ns DESC, stage, block, kind, axis
