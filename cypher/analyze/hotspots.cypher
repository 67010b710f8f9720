// Where a step communicates in the open, the worst first: a row a kind of message on one axis in one phase and block, its
// layers taken together. Numbers are of one rank that sends there, on average.
//
// mode: reads
// param profile: string — id of the profile
// column axis: string — mesh axis of the group: tp, dp, pp …
// column kind: string — all_reduce, all_gather, reduce_scatter, all_to_all or send
// column phase: string — forward, backward, recompute or optimizer
// column block: string — block of the symbolic op
// column dimension: string? — the slowest network dimension that it spans
// column layers: integer — layers of the model that send there; 0 outside layers
// column ranks: integer — ranks that send there
// column calls: integer — messages in a step
// column bytes: integer [B] — of these messages together: what a rank puts in
// column wire_bytes: integer [B] — that it sends into the network by them, all dimensions together
// column time: integer [ns] — that they take together
// column exposed: integer [ns] — of that, while nothing is computed
// column critical: integer [ns] — of the critical path, which is on one rank at a time, that lies here
// column share: float [ratio] — of the step that is exposed here
MATCH (p:Profile {id: $profile})
MATCH (t:OpTime {profile: $profile})
WHERE t.type IN ['collective', 'send']
WITH p.step AS step, t.axis AS axis, t.kind AS kind, t.phase AS phase, t.block AS block, t.dimension AS dimension,
  t.lane AS lane, t.ranks AS size, collect(DISTINCT t.layer) AS here, sum(t.count) AS calls,
  sum(t.count * t.message) AS bytes,
  sum(t.count * reduce(sent = 0, each IN coalesce(t.wire_bytes, []) | sent + each)) AS wire_bytes,
  sum(t.total) AS time, sum(t.exposed) AS exposed, sum(t.critical) AS critical
WITH step, axis, kind, phase, block, dimension, collect(here) AS layers, sum(size) AS ranks, sum(size * calls) AS calls,
  sum(size * bytes) AS bytes, sum(size * wire_bytes) AS wire_bytes, sum(size * time) AS time,
  sum(size * exposed) AS exposed, sum(critical) AS critical
WITH *, reduce(all = [], each IN layers | all + [layer IN each WHERE NOT layer IN all]) AS layers_of_all
RETURN axis, kind, phase, block, dimension, size(layers_of_all) AS layers, ranks, calls / ranks AS calls,
  bytes / ranks AS bytes, wire_bytes / ranks AS wire_bytes, time / ranks AS time, exposed / ranks AS exposed, critical,
  CASE WHEN step > 0 THEN toFloat(exposed) / ranks / step ELSE 0.0 END AS share
ORDER BY exposed DESC, time DESC, axis, kind, phase, block, dimension
