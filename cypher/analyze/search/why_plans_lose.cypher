// Why the plans of a search lose: by memory, by a term of the step that takes longer than in the best plan, by the bytes
// that a rank sends if these are what is to be small, or because they are no plans of the model.
//
// mode: reads
// param search: string — id of the search
// column code: string — the term, `bytes`, `memory`, `filtered`, `refused` or `untried`; `best` for the best plan
// column plans: integer — plans that lose by it
// column share: float [ratio] — of all plans of the search
// column candidates: integer — plans, and sets of plans that share why they lose
// column timed: integer — plans that were timed
// column step: integer? [ns] — the shortest step of these, or its lower bound; null if no bound is known
// column example: string? — why the best of them loses, in a sentence
MATCH (s:Search {id: $search, state: 'ready'})-[:TRIED]->(c:Candidate)
WITH s, c
ORDER BY c.place
WITH s, c.code AS code, sum(c.plans) AS plans, count(c) AS candidates,
  sum(CASE WHEN c.fate = 'timed' THEN 1 ELSE 0 END) AS timed, min(CASE WHEN c.step > 0 THEN c.step END) AS step,
  collect(c.why)[0] AS example
RETURN code, plans, toFloat(plans) / s.size AS share, candidates, timed, step, example
ORDER BY plans DESC, code
