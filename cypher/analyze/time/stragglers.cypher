// The ranks that a step waits for: lanes by how much longer they compute than the mean over all ranks of the job, each
// with its part of the critical path.
//
// mode: reads
// param profile: string — id of the profile
// column stage: integer — pipeline stage
// column class: integer — rank class
// column rank: integer — the smallest of the ranks with these times
// column ranks: integer — number of ranks with these times
// column busy: integer [ns] — time computing
// column over: integer [ns] — time above the mean; negative: below the mean
// column waits: integer [ns] — bubble and idle together
// column critical: integer [ns] — part of the critical path that is on these ranks
// column share: float [ratio] — share of the step that is critical on these ranks
// keep: stage, rank, over, waits, critical, share, busy
MATCH (p:Profile {id: $profile})-[:HAS_LANE]->(l:LaneTime)
WITH p, sum(l.ranks * l.busy) / p.world AS mean
MATCH (p)-[:HAS_LANE]->(l:LaneTime)-[:HAS_TASK_TIME]->(k:TaskTime)
WITH p, mean, l, sum(k.critical) AS critical
RETURN l.stage AS stage, l.class AS class, l.rank AS rank, l.ranks AS ranks, l.busy AS busy, l.busy - mean AS over,
  l.bubble + l.idle AS waits, critical, CASE WHEN p.step > 0 THEN toFloat(critical) / p.step ELSE 0.0 END AS share
ORDER BY over DESC, rank
