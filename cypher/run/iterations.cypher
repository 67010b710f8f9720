// The iterations of an engine that serves, in a run that was recorded.
//
// mode: reads
// param run: string — id of the run
// param rank: integer? — the rank; null: the first one that has iterations
// column rank: integer — the rank
// column number: integer — its place in the run
// column annotation: string — its name, as the engine writes it
// column workflow: string? — the workflow of such a step
// column requests: string[]? — its requests as a plan has them
// column prefills: integer? — requests with several new tokens
// column decodes: integer? — requests that add a token
// column tokens: integer? — new tokens of all requests
// column keys: integer? — keys of all requests
// column start: integer [ns] — when its first op begins
// column finish: integer [ns] — when its last op ends
// column busy: integer [ns] — part of it in which one of its ops runs
MATCH (:Run {id: $run})-[:HAS_RANK]->(r:RunRank)-[:HAS_ITERATION]->(i:RunIteration)
WHERE $rank IS NULL OR r.rank = $rank
RETURN i.rank AS rank, i.number AS number, i.annotation AS annotation, i.workflow AS workflow,
  i.requests AS requests, i.prefills AS prefills, i.decodes AS decodes, i.tokens AS tokens, i.keys AS keys,
  i.start AS start, i.finish AS finish, i.busy AS busy
ORDER BY rank, number
