// The symbolic operators with copies on the critical path of a profile, by their time on the path.
//
// mode: reads
// param profile: string — id of the profile
// column operator: string — the symbolic operator
// column kind: string — matmul, attention, all_gather …
// column phase: string — forward, backward, recompute or optimizer
// column axis: string? — mesh axis of communication; null for compute
// column stages: integer[] — pipeline stages of these copies
// column copies: integer — copies on the path: the same operator in several layers and on several lanes
// column runs: integer — runs on the path
// column ns: integer [ns] — time on the path
// column share: float [ratio] — share of the step
// keep: operator, kind, ns, share, axis, phase
MATCH (p:Profile {id: $profile})-[:HAS_SEGMENT]->(:Segment)-[:CONTAINS]->(t:OpTime)
WITH DISTINCT p, t
MATCH (t)-[:OF]->(:Op)-[:COPY_OF]->(s:SymOp)
WITH p, s, t ORDER BY t.stage
WITH p, s, collect(DISTINCT t.stage) AS stages, count(t) AS copies, sum(t.times_critical) AS runs, sum(t.critical) AS ns
RETURN s.name AS operator, s.kind AS kind, s.phase AS phase, s.axis AS axis, stages, copies, runs, ns,
  CASE WHEN p.step > 0 THEN toFloat(ns) / p.step ELSE 0.0 END AS share
ORDER BY ns DESC, operator
