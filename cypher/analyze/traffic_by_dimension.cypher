// What a profile sends over each dimension of the system's network, all ranks together. A message that crosses several
// dimensions counts in each of them, with all of its time and with what it sends into that one.
//
// mode: reads
// param profile: string — id of the profile
// column dimension: string — network dimension
// column axis: string — mesh axis of the group: tp, dp, pp …
// column messages: integer — collectives and sends that ranks issue in a step
// column bytes: integer [B] — that ranks put in (operands), all together
// column wire_bytes: integer [B] — that ranks send into the dimension, all together
// column time: integer [ns] — of one rank in a step, on average over all ranks of the job
// column exposed: integer [ns] — of that, while nothing is computed
// column share: float [ratio] — time, of the step
MATCH (p:Profile {id: $profile})
MATCH (t:OpTime {profile: $profile})
WHERE t.type IN ['collective', 'send'] AND t.wires IS NOT NULL
UNWIND range(0, size(t.wires) - 1) AS at
WITH p.step AS step, p.world AS world, t.wires[at] AS dimension, t.axis AS axis, sum(t.ranks * t.count) AS messages,
  sum(t.ranks * t.count * t.message) AS bytes, sum(t.ranks * t.count * t.wire_bytes[at]) AS wire_bytes,
  sum(t.ranks * t.total) AS time, sum(t.ranks * t.exposed) AS exposed
RETURN dimension, axis, messages, bytes, wire_bytes, time / world AS time, exposed / world AS exposed,
  CASE WHEN step > 0 THEN toFloat(time) / world / step ELSE 0.0 END AS share
ORDER BY time DESC, dimension, axis
