// The ranks that the others of a run wait for in collectives and messages, the most waited for first. A wait compares the
// clocks of two ranks, which are aligned with an error: rows that are not `certain` come last, and may be none.
//
// mode: reads
// param run: string — id of the run
// column rank: integer — the rank
// column axis: string? — name of the group, as the framework describes it; null if none was recorded
// column kind: string — all_reduce, all_gather …
// column calls: integer — collectives that it was the last to begin
// column waited: integer [ns] — time that the other members waited for it, all together
// column longest: integer [ns] — the longest wait for it, from the first member to it
// column share: float [ratio] — `waited` as a share of the run and its ranks: 0.1 if each imported rank waits a tenth of the run
// column clock_error: integer [ns] — the likely error of the clocks of two ranks, the largest one (`clocks` has those of all)
// column certain: boolean — `longest` is longer than `clock_error`; else all these waits may be none
// keep: rank, axis, kind, waited, share, clock_error, calls
MATCH (r:Run {id: $run})-[:HAS_RANK]->(k:RunRank)
WITH r, max(k.spread) AS clock_error
MATCH (r)-[:HAS_COLLECTIVE]->(c:RunCollective)
WHERE size(c.members) > 1 AND c.waited > 0
WITH r.step AS step, r.world AS world, clock_error, c.last AS rank, c.axis AS axis, c.kind AS kind,
  count(c) AS calls, sum(c.waited) AS waited, max(c.ready - c.start) AS longest
WITH *, longest > clock_error AS certain
RETURN rank, axis, kind, calls, waited, longest,
  CASE WHEN step > 0 THEN toFloat(waited) / world / step ELSE 0.0 END AS share, clock_error, certain
ORDER BY certain DESC, waited DESC, rank, axis, kind
