// The parts of a run's critical path: by pipeline stage, block, kind and axis. Gaps, in which nothing on the path runs, are
// a part of their stage, of kind `gap`; all parts add up to the run.
//
// mode: reads
// param profile: string — id of the run
// column stage: integer — pipeline stage
// column block: string — annotation around the op; empty: none was recorded, or gaps
// column kind: string — matmul, attention, all_gather …, or gap: between ops of the path
// column axis: string? — name of the group that communicates; null for compute and gaps
// column runs: integer — runs on the path; of gaps the ops that they are before
// column ns: integer [ns] — time on the path
// column share: float [ratio] — share of the run
// keep: stage, block, kind, ns, share, axis
MATCH (r:Run {id: $profile})-[:HAS_LANE]->(l:RunLane)-[:HAS_OP_TIME]->(o:RunOp)
WHERE o.critical > 0 OR o.idle_before > 0
UNWIND [false, true] AS gap
WITH r.step AS step, l.stage AS stage, CASE WHEN gap THEN '' ELSE o.block END AS block,
  CASE WHEN gap THEN 'gap' ELSE o.kind END AS kind, CASE WHEN NOT gap THEN o.axis END AS axis,
  CASE WHEN gap THEN 1 ELSE o.times_critical END AS runs, CASE WHEN gap THEN o.idle_before ELSE o.critical END AS ns
WHERE ns > 0
WITH step, stage, block, kind, axis, sum(runs) AS runs, sum(ns) AS ns
RETURN stage, block, kind, axis, runs, ns, CASE WHEN step > 0 THEN toFloat(ns) / step ELSE 0.0 END AS share
ORDER BY ns DESC, stage, block, kind, axis
