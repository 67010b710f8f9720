// The twenty operators of a run that take most time, all their calls together; on a device they are kernels. Numbers are
// of a rank, on average.
//
// mode: reads
// param profile: string — id of the run
// column operator: string — name of the kernel or operator
// column launcher: string? — the operator that launched it; null: it is this operator, or none was recorded
// column module: string? — module or annotation that its calls take most time in; null: neither was recorded
// column modules: integer — how many modules or annotations it is called in
// column kind: string — matmul, attention, all_gather …
// column phase: string — forward, backward, recompute, optimizer or unknown
// column axis: string? — name of the group that communicates; null for compute
// column calls: float — how often it runs
// column total: integer [ns] — time of all these calls
// column longest: integer [ns] — the longest single call on any rank
// column critical: integer [ns] — their time on the critical path, which is on one rank at a time
// column share: float [ratio] — `total` as a share of the run
// keep: operator, total, share, calls, longest, phase, module, critical
MATCH (r:Run {id: $profile})-[:HAS_LANE]->(l:RunLane)-[:HAS_OP_TIME]->(o:RunOp)
WITH r.step AS step, r.world AS world, o.name AS operator, o.kind AS kind, o.phase AS phase, o.axis AS axis,
  CASE WHEN o.launcher <> o.name THEN o.launcher END AS launcher,
  coalesce(o.module, CASE WHEN o.block <> '' THEN o.block END) AS module,
  sum(l.ranks) AS calls, sum(l.ranks * o.duration) AS total, sum(o.critical) AS critical,
  max(reduce(most = 0, each IN o.durations | CASE WHEN each > most THEN each ELSE most END)) AS longest
WITH * ORDER BY total DESC, module
WITH step, world, operator, launcher, kind, phase, axis, head(collect(module)) AS module, count(module) AS modules,
  sum(calls) AS calls, sum(total) AS total, sum(critical) AS critical, max(longest) AS longest
RETURN operator, launcher, module, modules, kind, phase, axis, toFloat(calls) / world AS calls,
  total / world AS total, longest, critical,
  CASE WHEN step > 0 THEN toFloat(total) / world / step ELSE 0.0 END AS share
ORDER BY total DESC, operator, launcher, kind, phase, axis LIMIT 20
