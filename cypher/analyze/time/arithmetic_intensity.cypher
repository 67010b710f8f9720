// Whether memory or arithmetic limits compute: FLOPs per byte compared with the system's ridge, all ranks together. The
// ridge is the accelerator's peak over its memory's bandwidth.
//
// mode: reads
// param profile: string — id of the profile
// column kind: string — matmul, attention, norm …
// column block: string — block of the symbolic op
// column phase: string — forward, backward, recompute or optimizer
// column dtype: string? — format that FLOPs are computed in; null if there are none
// column rule: string — source of the durations
// column operators: integer — operators on one rank of each lane
// column flops: float [flop] — FLOPs of a step
// column bytes: float [B] — bytes read and written in a step
// column intensity: float? [flop/B] — FLOPs per byte; null if no bytes are moved
// column ridge: float? [flop/B] — ridge of the format with most FLOPs of the profile; null for other formats
// column bound: string? — memory or compute, by the ridge; null if the ridge is null
// column time: integer [ns] — time on one rank in a step, the average over all ranks
// column share: float [ratio] — share of the step that the time is
// keep: kind, block, intensity, ridge, bound, time, share
MATCH (p:Profile {id: $profile})-[:HAS_LANE]->(l:LaneTime)-[:HAS_OP_TIME]->(t:OpTime)
WHERE t.type = 'compute'
WITH p, t.kind AS kind, t.block AS block, t.phase AS phase, CASE WHEN t.flops > 0 THEN t.dtype END AS dtype,
  t.rule AS rule, count(t) AS operators, sum(toFloat(t.flops) * t.count * l.ranks) AS flops,
  sum(toFloat(t.bytes) * t.count * l.ranks) AS bytes, sum(l.ranks * t.total) AS time
WITH p.step AS step, p.world AS world, kind, block, phase, dtype, rule, operators, flops, bytes, time,
  CASE WHEN bytes > 0 THEN flops / bytes END AS intensity,
  CASE WHEN flops = 0 OR dtype STARTS WITH p.dtype THEN p.peak / p.bandwidth END AS ridge
RETURN kind, block, phase, dtype, rule, operators, flops, bytes, intensity, ridge,
  CASE WHEN ridge IS NULL OR intensity IS NULL THEN null WHEN intensity < ridge THEN 'memory' ELSE 'compute' END
    AS bound,
  time / world AS time, CASE WHEN step > 0 THEN toFloat(time) / world / step ELSE 0.0 END AS share
ORDER BY time DESC, kind, block, phase, dtype, rule
