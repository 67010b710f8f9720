// The cost of recomputing activations in a profile, by block and kind: averages over all ranks of the job. Without
// recomputing there are no rows.
//
// mode: reads
// param profile: string — id of the profile
// column block: string — block of the symbolic op
// column kind: string — matmul, attention, all_gather …
// column type: string — compute, collective or send
// column runs: float — runs on a rank in a step
// column flops: float [flop] — FLOPs of a rank in a step
// column time: integer [ns] — time of a rank in a step
// column share: float [ratio] — share of the step that the time is
// column critical: integer [ns] — time on the critical path
// keep: block, kind, time, share, flops
MATCH (p:Profile {id: $profile})-[:HAS_LANE]->(l:LaneTime)-[:HAS_OP_TIME]->(t:OpTime)
WHERE t.phase = 'recompute'
WITH p, t.block AS block, t.kind AS kind, t.type AS type, toFloat(sum(l.ranks * t.count)) AS runs,
  sum(toFloat(t.flops) * t.count * l.ranks) AS flops, sum(l.ranks * t.total) AS time, sum(t.critical) AS critical
WITH p.step AS step, p.world AS world, block, kind, type, runs, flops, time, critical
RETURN block, kind, type, runs / world AS runs, flops / world AS flops, time / world AS time,
  CASE WHEN step > 0 THEN toFloat(time) / world / step ELSE 0.0 END AS share, critical
ORDER BY time DESC, block, kind, type
