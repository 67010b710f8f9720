// The collectives during which ranks compute nothing, the longest first, each with a group that runs it. A row takes all
// layers of a symbolic operator together. Numbers are for one rank of a lane.
//
// mode: reads
// param profile: string — id of the profile
// column operator: string — the symbolic operator
// column kind: string — all_reduce, all_gather, reduce_scatter or all_to_all
// column axis: string — mesh axis of the group: tp, dp …
// column stage: integer — pipeline stage
// column rank: integer — the smallest of the ranks with these times
// column ranks: integer — number of ranks with these times
// column group: integer — number of the group that this rank is in
// column members: integer[] — ranks of that group, in its order
// column calls: integer — collectives in a step
// column time: integer [ns] — time of these collectives together
// column exposed: integer [ns] — part of that time in which the rank computes nothing
// column share: float [ratio] — share of the step that is exposed
// keep: operator, exposed, share, axis, stage, calls
MATCH (p:Profile {id: $profile})-[:OF]->(i:Instance)
MATCH (p)-[:HAS_LANE]->(l:LaneTime)-[:HAS_OP_TIME]->(t:OpTime)
WHERE t.type = 'collective' AND t.exposed > 0
MATCH (t)-[:OF]->(:Op)-[:COPY_OF]->(s:SymOp)
WITH p, i, l, s, sum(t.count) AS calls, sum(t.total) AS time, sum(t.exposed) AS exposed
WITH p, i, l, s, calls, time, exposed,
  head([k IN range(0, size(coalesce(i.group_axes, [])) - 1) WHERE i.group_axes[k] = s.axis]) AS k
WITH p, l, s, calls, time, exposed, i.group_firsts[k] AS first, i.group_strides[k] AS stride,
  i.group_strides[k] * i.group_sizes[k] AS span, i.group_members[k] AS many, i.group_steps[k] AS step
// Instances that an older stagedb made have the nodes of all groups instead of these numbers.
OPTIONAL MATCH (r:Rank {instance: p.instance, rank: l.rank})
WHERE first IS NULL
OPTIONAL MATCH (g:Group {id: p.instance + '/' + toString(r['group_' + s.axis])})
WITH p, l, s, calls, time, exposed, g, first, step, many, l.rank / span * stride + l.rank % stride AS at,
  l.rank / span * span + l.rank % stride AS start
WHERE first IS NOT NULL OR g IS NOT NULL
RETURN s.name AS operator, s.kind AS kind, s.axis AS axis, l.stage AS stage, l.rank AS rank, l.ranks AS ranks,
  coalesce(first + at, g.gid) AS group,
  CASE WHEN first IS NULL THEN g.ranks ELSE [k IN range(0, many - 1) | start + k * step] END AS members,
  calls, time, exposed,
  CASE WHEN p.step > 0 THEN toFloat(exposed) / p.step ELSE 0.0 END AS share
ORDER BY exposed DESC, time DESC, rank, operator
