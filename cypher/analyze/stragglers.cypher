// Which ranks a step waits for: lanes by how much longer they compute than the mean over all ranks of the job, with what
// of the critical path runs on them.
//
// mode: reads
// param profile: string — id of the profile
// column stage: integer — pipeline stage
// column class: integer — rank class
// column rank: integer — the smallest of the ranks that keep this time
// column ranks: integer — how many do
// column busy: integer [ns] — computing
// column over: integer [ns] — more than the mean; below 0: less
// column waits: integer [ns] — bubble and idle
// column critical: integer [ns] — of the critical path that runs here
// column share: float [ratio] — of the step that is critical here
MATCH (p:Profile {id: $profile})
MATCH (l:LaneTime {profile: $profile})
WITH p, sum(l.ranks * l.busy) / p.world AS mean
MATCH (t:OpTime {profile: $profile})
WITH p.step AS step, mean, t.lane AS lane, sum(t.critical) AS critical
MATCH (l:LaneTime {id: $profile + '/' + toString(lane)})
RETURN l.stage AS stage, l.class AS class, l.rank AS rank, l.ranks AS ranks, l.busy AS busy, l.busy - mean AS over,
  l.bubble + l.idle AS waits, critical, CASE WHEN step > 0 THEN toFloat(critical) / step ELSE 0.0 END AS share
ORDER BY over DESC, rank
