// Where a step communicates and computes nothing, layer by layer, the longest first. A row is one kind of message on one
// axis in one layer. Numbers are averages over the ranks that send such messages.
//
// mode: reads
// param profile: string — id of the profile
// column axis: string — mesh axis of the group: tp, dp, pp …
// column kind: string — all_reduce, all_gather, reduce_scatter, all_to_all or send
// column block: string — block of the symbolic op
// column layer: integer? — number of the layer in the model; null outside layers
// column dimension: string? — the slowest network dimension that it spans
// column ranks: integer — ranks that send such messages
// column calls: integer — messages in a step
// column bytes: integer? [B] — operands of these messages together; null: a recording does not have them all
// column wire_bytes: integer [B] — bytes that the rank sends into the network for them, all dimensions together
// column time: integer [ns] — time of these messages together
// column exposed: integer [ns] — part of that time in which the rank computes nothing
// column critical: integer [ns] — their part of the critical path, which is on one rank at a time
// column share: float [ratio] — share of the step that is exposed
// keep: axis, kind, exposed, share, layer, block, bytes, time, calls
MATCH (p:Profile {id: $profile})-[:HAS_LANE]->(l:LaneTime)-[:HAS_OP_TIME]->(t:OpTime)
WHERE t.type IN ['collective', 'send']
WITH p, l, t.axis AS axis, t.kind AS kind, t.block AS block, t.layer AS layer, t.dimension AS dimension,
  sum(t.count) AS calls, CASE WHEN count(t.message) = count(t) THEN sum(t.count * t.message) END AS bytes,
  sum(t.count * reduce(sent = 0, each IN coalesce(t.wire_bytes, []) | sent + each)) AS wire_bytes,
  sum(t.total) AS time, sum(t.exposed) AS exposed, sum(t.critical) AS critical
WITH p.step AS step, axis, kind, block, layer, dimension, sum(l.ranks) AS ranks, sum(l.ranks * calls) AS calls,
  CASE WHEN count(bytes) = count(l) THEN sum(l.ranks * bytes) END AS bytes, sum(l.ranks * wire_bytes) AS wire_bytes,
  sum(l.ranks * time) AS time, sum(l.ranks * exposed) AS exposed, sum(critical) AS critical
RETURN axis, kind, block, layer, dimension, ranks, calls / ranks AS calls, bytes / ranks AS bytes,
  wire_bytes / ranks AS wire_bytes, time / ranks AS time, exposed / ranks AS exposed, critical,
  CASE WHEN step > 0 THEN toFloat(exposed) / ranks / step ELSE 0.0 END AS share
ORDER BY exposed DESC, time DESC, axis, kind, block, layer
