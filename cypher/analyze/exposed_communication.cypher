// Communication of a profile, hidden and in the open, by axis, kind and phase: on average over all ranks of the job. Where
// messages of several axes run beside each other, each counts.
//
// mode: reads
// param profile: string — id of the profile
// column axis: string — mesh axis of the group: tp, dp, pp …
// column kind: string — all_reduce, all_gather, reduce_scatter, all_to_all or send
// column phase: string — forward, backward, recompute or optimizer
// column calls: float — messages of a rank in a step
// column bytes: integer [B] — of these messages together: what the rank puts in
// column wire_bytes: integer [B] — that it sends into the network by them, all dimensions together
// column time: integer [ns] — that they take together
// column exposed: integer [ns] — of that, while nothing is computed
// column hidden: float [ratio] — share of the time that is behind computing
// column share: float [ratio] — of the step that is exposed
MATCH (p:Profile {id: $profile})
MATCH (t:OpTime {profile: $profile})
WHERE t.type IN ['collective', 'send']
WITH p.step AS step, p.world AS world, t.axis AS axis, t.kind AS kind, t.phase AS phase,
  toFloat(sum(t.ranks * t.count)) AS calls, sum(t.ranks * t.count * t.message) AS bytes,
  sum(t.ranks * t.count * reduce(sent = 0, each IN coalesce(t.wire_bytes, []) | sent + each)) AS wire_bytes,
  sum(t.ranks * t.total) AS time, sum(t.ranks * t.exposed) AS exposed
RETURN axis, kind, phase, calls / world AS calls, bytes / world AS bytes, wire_bytes / world AS wire_bytes,
  time / world AS time, exposed / world AS exposed,
  CASE WHEN time > 0 THEN 1 - toFloat(exposed) / time ELSE 0.0 END AS hidden,
  CASE WHEN step > 0 THEN toFloat(exposed) / world / step ELSE 0.0 END AS share
ORDER BY exposed DESC, time DESC, axis, kind, phase
