// What two instances do differently in one step, all ranks together: work and messages whose number or size differ.
//
// mode: reads
// param instance: string — id of the instance that is compared
// param other: string — id or name of the instance that it is compared with
// column type: string — compute, collective or send
// column kind: string — matmul, attention, norm, all_reduce …
// column axis: string? — mesh axis of a message; null for what computes
// column phase: string — forward, recompute, backward or optimizer
// column calls: integer — how often ranks of the instance run it
// column other_calls: integer — how often those of the other do
// column flops: integer [flop] — of the instance
// column other_flops: integer [flop] — of the other
// column bytes: integer [B] — sent by ranks of the instance; of what computes, read and written
// column other_bytes: integer [B] — of the other
UNWIND [true, false] AS own
WITH own, CASE WHEN own THEN $instance ELSE $other END AS asked
MATCH (c:RankClass {instance: asked})
MATCH (t:Task {instance: asked, class: c.class})
WITH own, asked, c.class AS class, c.ranks AS ranks, t.chunk AS chunk,
  sum(CASE WHEN t.kind = 'forward' THEN 1 ELSE 0 END) AS forwards,
  sum(CASE WHEN t.kind IN ['backward', 'input_gradient'] THEN 1 ELSE 0 END) AS input_gradients,
  sum(CASE WHEN t.kind IN ['backward', 'weight_gradient'] THEN 1 ELSE 0 END) AS weight_gradients
MATCH (o:Op {instance: asked, class: class, chunk: chunk})
WHERE o.type <> 'recv'
WITH o.type AS type, o.kind AS kind, o.axis AS axis, o.phase AS phase, own,
  ranks * CASE
    WHEN o.`when` <> 'every' OR o.template = 'step' THEN 1
    WHEN o.template = 'forward' THEN forwards
    WHEN o.template = 'input_gradient' THEN input_gradients
    ELSE weight_gradients
  END AS times,
  coalesce(o.flops, 0) AS flops, coalesce(o.comm_bytes, o.bytes_read + o.bytes_written, 0) AS bytes
WITH type, kind, axis, phase,
  sum(CASE WHEN own THEN times ELSE 0 END) AS calls, sum(CASE WHEN own THEN 0 ELSE times END) AS other_calls,
  sum(CASE WHEN own THEN times * flops ELSE 0 END) AS flops,
  sum(CASE WHEN own THEN 0 ELSE times * flops END) AS other_flops,
  sum(CASE WHEN own THEN times * bytes ELSE 0 END) AS bytes,
  sum(CASE WHEN own THEN 0 ELSE times * bytes END) AS other_bytes
WHERE calls <> other_calls OR flops <> other_flops OR bytes <> other_bytes
RETURN type, kind, axis, phase, calls, other_calls, flops, other_flops, bytes, other_bytes
ORDER BY type, axis, kind, phase
