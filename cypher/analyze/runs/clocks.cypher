// The clocks of the ranks of a run, and how they were aligned: by collectives whose members end together.
//
// mode: reads
// param run: string — id of the run
// column rank: integer — the rank
// column offset: integer [ns] — how far its clock was ahead of that of the first rank
// column spread: integer [ns] — median distance of single collectives from this offset: its likely error
// column collectives: integer — collectives that the offset follows from; 0: the clock as it is
// column ops: integer — ops that the rank executed
// column start: integer [ns] — when its first op begins
// column finish: integer [ns] — when its last op ends
// keep: rank, offset, spread, collectives
MATCH (:Run {id: $run})-[:HAS_RANK]->(r:RunRank)
RETURN r.rank AS rank, r.offset AS offset, r.spread AS spread, r.synchronised AS collectives, r.ops AS ops,
  r.start AS start, r.finish AS finish
ORDER BY rank
