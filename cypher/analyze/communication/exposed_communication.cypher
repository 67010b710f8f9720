// The communication of a profile by axis, kind and phase: how much of it computing hides, and how much is exposed.
// Numbers are averages over all ranks of the job. Messages of several axes that run at the same time all count.
//
// mode: reads
// param profile: string — id of the profile
// column axis: string — mesh axis of the group: tp, dp, pp …
// column kind: string — all_reduce, all_gather, reduce_scatter, all_to_all or send
// column phase: string — forward, backward, recompute or optimizer
// column calls: float — messages of a rank in a step
// column bytes: integer? [B] — operands of these messages together; null: a recording does not have them all
// column wire_bytes: integer [B] — bytes that the rank sends into the network for them, all dimensions together
// column time: integer [ns] — time of these messages together
// column exposed: integer [ns] — part of that time in which the rank computes nothing
// column hidden: float [ratio] — part of that time in which the rank computes
// column share: float [ratio] — share of the step that is exposed
// keep: axis, kind, phase, exposed, share, time, bytes
MATCH (p:Profile {id: $profile})-[:HAS_LANE]->(l:LaneTime)-[:HAS_OP_TIME]->(t:OpTime)
WHERE t.type IN ['collective', 'send']
WITH p, t.axis AS axis, t.kind AS kind, t.phase AS phase, toFloat(sum(l.ranks * t.count)) AS calls,
  CASE WHEN count(t.message) = count(t) THEN sum(l.ranks * t.count * t.message) END AS bytes,
  sum(l.ranks * t.count * reduce(sent = 0, each IN coalesce(t.wire_bytes, []) | sent + each)) AS wire_bytes,
  sum(l.ranks * t.total) AS time, sum(l.ranks * t.exposed) AS exposed
WITH p.step AS step, p.world AS world, axis, kind, phase, calls, bytes, wire_bytes, time, exposed
RETURN axis, kind, phase, calls / world AS calls, bytes / world AS bytes, wire_bytes / world AS wire_bytes,
  time / world AS time, exposed / world AS exposed,
  CASE WHEN time > 0 THEN 1 - toFloat(exposed) / time ELSE 0.0 END AS hidden,
  CASE WHEN step > 0 THEN toFloat(exposed) / world / step ELSE 0.0 END AS share
ORDER BY exposed DESC, time DESC, axis, kind, phase
