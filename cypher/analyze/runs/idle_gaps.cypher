// The gaps of the critical path of a run, in which nothing on the path runs: the twenty kernels after the longest ones.
// Kernels with the same name and the same launcher are one row.
//
// mode: reads
// param run: string — id of the run
// column name: string — the kernel after the gap
// column launcher: string? — the operator that launched it; null: it is this operator, or none was recorded
// column block: string — the annotation around it; empty: none
// column gaps: integer — gaps before such kernels
// column idle: integer [ns] — their time, all together
// column launching: integer [ns] — part of it in which the launch of the kernel had not begun: the host was late
// column longest: integer [ns] — the longest gap before one kernel
// column share: float [ratio] — share of the run that they are
// keep: name, idle, share, block, launching, launcher, gaps
MATCH (r:Run {id: $run})-[:HAS_LANE]->(:RunLane)-[:HAS_OP_TIME]->(o:RunOp)
WHERE o.idle_before > 0
WITH r.step AS step, o.name AS name, o.block AS block,
  CASE WHEN o.launcher <> o.name THEN o.launcher END AS launcher, count(o) AS gaps,
  sum(o.idle_before) AS idle, sum(o.launching) AS launching, max(o.idle_before) AS longest
RETURN name, launcher, block, gaps, idle, launching, longest,
  CASE WHEN step > 0 THEN toFloat(idle) / step ELSE 0.0 END AS share
ORDER BY idle DESC, name, launcher, block LIMIT 20
