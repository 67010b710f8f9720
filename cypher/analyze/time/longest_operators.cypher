// The twenty operators of a profile that take longest in one run. Layers of one stage with the same time are one row.
//
// mode: reads
// param profile: string — id of the profile
// column operator: string — the symbolic operator, without its layer
// column kind: string — matmul, attention, all_gather …
// column phase: string — forward, backward, recompute or optimizer
// column axis: string? — mesh axis of communication; null for compute
// column stage: integer — pipeline stage
// column operators: integer — number of these operators on a rank of this stage
// column duration: integer [ns] — time of one run of one operator
// column total: integer [ns] — time of all their runs on one rank of the stage, on average
// column slack: integer [ns] — the least delay of a run that makes the step longer
// column critical: integer [ns] — their time on the critical path
// column rule: string — source of the duration
// column dimension: string? — the slowest network dimension that it spans
// keep: operator, duration, total, critical, stage
MATCH (:Profile {id: $profile})-[:HAS_LANE]->(l:LaneTime)-[:HAS_OP_TIME]->(t:OpTime)
WITH l, t, CASE WHEN t.layer IS NULL THEN t.name ELSE t.block + substring(t.name, size(split(t.name, '.')[0]) + 1
  + size(split(t.name, '.')[1])) END AS operator
WITH l, operator, t.kind AS kind, t.phase AS phase, t.axis AS axis, t.duration AS duration, t.rule AS rule,
  t.dimension AS dimension, count(t) AS operators, sum(t.total) AS total, min(t.slack) AS slack,
  sum(t.critical) AS critical
WITH operator, kind, phase, axis, l.stage AS stage, duration, rule, dimension,
  sum(l.ranks * operators) / sum(l.ranks) AS operators, sum(l.ranks * total) / sum(l.ranks) AS total,
  min(slack) AS slack, sum(critical) AS critical
RETURN operator, kind, phase, axis, stage, operators, duration, total, slack, critical, rule, dimension
ORDER BY duration DESC, total DESC, stage, operator LIMIT 20
