// How the steps of two instances differ, all ranks together: work and messages that differ in number or size.
//
// mode: reads
// param instance: string — id of the instance that is compared
// param other: string — id or name of the instance that it is compared with
// column type: string — compute, collective or send
// column kind: string — matmul, attention, norm, all_reduce …
// column axis: string? — mesh axis of a message; null for compute
// column phase: string — forward, recompute, backward or optimizer
// column calls: integer — runs on all ranks of the instance
// column other_calls: integer — runs on all ranks of the other instance
// column flops: float [flop] — FLOPs of the instance
// column other_flops: float [flop] — FLOPs of the other instance
// column bytes: float [B] — bytes that ranks of the instance send; for compute, bytes that they read and write
// column other_bytes: float [B] — bytes of the other instance
// keep: type, kind, axis, flops, other_flops, bytes, other_bytes
UNWIND [true, false] AS own
WITH own, CASE WHEN own THEN $instance ELSE $other END AS asked
MATCH (:Instance {id: asked})-[:HAS_CLASS]->(c:RankClass)-[:RUNS]->(o:Op)
WHERE o.type <> 'recv'
WITH own, o.type AS type, o.kind AS kind, o.axis AS axis, o.phase AS phase, sum(c.ranks * o.runs) AS times,
  sum(toFloat(c.ranks) * o.runs * o.flops) AS work,
  sum(toFloat(c.ranks) * o.runs * coalesce(o.comm_bytes, o.bytes_read + o.bytes_written)) AS moved
WITH type, kind, axis, phase,
  sum(CASE WHEN own THEN times ELSE 0 END) AS calls, sum(CASE WHEN own THEN 0 ELSE times END) AS other_calls,
  sum(CASE WHEN own THEN work ELSE 0.0 END) AS flops, sum(CASE WHEN own THEN 0.0 ELSE work END) AS other_flops,
  sum(CASE WHEN own THEN moved ELSE 0.0 END) AS bytes, sum(CASE WHEN own THEN 0.0 ELSE moved END) AS other_bytes
// Sums of a large step are beyond 64-bit integers. Those of floats may differ in their last digits where nothing differs.
WHERE calls <> other_calls OR abs(flops - other_flops) > 1e-12 * flops OR abs(bytes - other_bytes) > 1e-12 * bytes
RETURN type, kind, axis, phase, calls, other_calls, flops, other_flops, bytes, other_bytes
ORDER BY type, axis, kind, phase
