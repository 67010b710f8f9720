// The traffic of a profile over each dimension of the system's network, all ranks together. A message that crosses several
// dimensions counts in each of them: with its whole time, and with the bytes that it sends into that dimension.
//
// mode: reads
// param profile: string — id of the profile
// column dimension: string — network dimension
// column axis: string — mesh axis of the group: tp, dp, pp …
// column messages: integer — collectives and sends that ranks issue in a step
// column bytes: integer [B] — operands of all ranks together
// column wire_bytes: integer [B] — bytes that all ranks together send into the dimension
// column time: integer [ns] — time of these messages on one rank in a step, the average over all ranks
// column exposed: integer [ns] — part of that time in which the rank computes nothing
// column share: float [ratio] — share of the step that the time is
// keep: dimension, axis, wire_bytes, time, exposed, share, bytes
MATCH (p:Profile {id: $profile})-[:HAS_LANE]->(l:LaneTime)-[:HAS_OP_TIME]->(t:OpTime)
WHERE t.type IN ['collective', 'send'] AND t.wires IS NOT NULL
UNWIND range(0, size(t.wires) - 1) AS at
WITH p, t.wires[at] AS dimension, t.axis AS axis, sum(l.ranks * t.count) AS messages,
  sum(l.ranks * t.count * t.message) AS bytes, sum(l.ranks * t.count * t.wire_bytes[at]) AS wire_bytes,
  sum(l.ranks * t.total) AS time, sum(l.ranks * t.exposed) AS exposed
WITH p.step AS step, p.world AS world, dimension, axis, messages, bytes, wire_bytes, time, exposed
RETURN dimension, axis, messages, bytes, wire_bytes, time / world AS time, exposed / world AS exposed,
  CASE WHEN step > 0 THEN toFloat(time) / world / step ELSE 0.0 END AS share
ORDER BY time DESC, dimension, axis
