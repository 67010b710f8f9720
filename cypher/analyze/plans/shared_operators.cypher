// The symbolic operators that two instances share, and those that only one of them runs. Operators with the same name
// and kind are the same, in one graph or in two.
//
// mode: reads
// param instance: string — id of the instance that is compared
// param other: string — id or name of the instance that it is compared with
// column block: string — block of the symbolic operators
// column kind: string — matmul, attention, all_reduce …
// column axis: string? — mesh axis of communication; null for compute
// column phase: string — forward, recompute, backward or optimizer
// column both: integer — symbolic operators that both instances run
// column only: integer — symbolic operators that only the instance runs
// column only_other: integer — symbolic operators that only the other one runs
// column copies: integer — copies of these operators in the rank classes of the instance
// column other_copies: integer — copies in the rank classes of the other one
UNWIND [true, false] AS own
WITH own, CASE WHEN own THEN $instance ELSE $other END AS asked
MATCH (:Instance {id: asked})-[:HAS_CLASS]->(:RankClass)-[:RUNS]->(o:Op)-[:COPY_OF]->(s:SymOp)
WITH own, s, count(o) AS copies
WITH s.name AS name, s.block AS block, s.kind AS kind, s.axis AS axis, s.phase AS phase,
  sum(CASE WHEN own THEN copies ELSE 0 END) AS copies, sum(CASE WHEN own THEN 0 ELSE copies END) AS other_copies
RETURN block, kind, axis, phase, sum(CASE WHEN copies > 0 AND other_copies > 0 THEN 1 ELSE 0 END) AS both,
  sum(CASE WHEN other_copies = 0 THEN 1 ELSE 0 END) AS only, sum(CASE WHEN copies = 0 THEN 1 ELSE 0 END) AS only_other,
  sum(copies) AS copies, sum(other_copies) AS other_copies
ORDER BY block, kind, axis, phase
