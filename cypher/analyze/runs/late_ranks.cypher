// The ranks that the others of a run wait for in collectives and messages, the most waited for first.
//
// mode: reads
// param run: string — id of the run
// column rank: integer — the rank
// column axis: string? — name of the group, as the framework describes it; null if none was recorded
// column kind: string — all_reduce, all_gather …
// column calls: integer — collectives that it was the last to begin
// column waited: integer [ns] — time that the other members waited for it, all together
// column longest: integer [ns] — the longest wait for it, from the first member to it
// column share: float [ratio] — share that the waiting has of the run, the average of its imported ranks
// keep: rank, axis, kind, calls, waited, share
MATCH (r:Run {id: $run})-[:HAS_COLLECTIVE]->(c:RunCollective)
WHERE size(c.members) > 1 AND c.waited > 0
WITH r.step AS step, r.world AS world, c.last AS rank, c.axis AS axis, c.kind AS kind, count(c) AS calls,
  sum(c.waited) AS waited, max(c.ready - c.start) AS longest
RETURN rank, axis, kind, calls, waited, longest,
  CASE WHEN step > 0 THEN toFloat(waited) / world / step ELSE 0.0 END AS share
ORDER BY waited DESC, rank, axis, kind
