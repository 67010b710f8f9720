// The newest jobs, each with what it works on.
//
// mode: reads
// param most: integer — at most so many
// column id: string — unique in the store
// column kind: string — export, import, search or profile
// column what: string — what the user named: a model, an instance, a run
// column host: string — the machine's name
// column user: string — the user
// column started: integer [ms] — when, since 1970 (UTC)
// column updated: integer [ms] — the last sign of life
// column done: integer? — how much is done; null before the first report
// column of: integer? — of how much
// column unit: string — what these count
// column detail: string? — what it does, or the best that it has found
// column state: string — running, done or failed
// column owner: string? — the process that runs it; null for a job of an older stagedb
// column silent: integer [ms] — time since the last sign of life, by the store's clock
// column label: string? — label of what it works on
// column thing: string? — the id of that
MATCH (j:Job)
OPTIONAL MATCH (j)-[:WORKS_ON]->(n)
WITH j, head(collect(n)) AS n
RETURN j.id AS id, j.kind AS kind, j.what AS what, j.host AS host, j.user AS user, j.started AS started,
  j.updated AS updated, j.done AS done, j.of AS of, j.unit AS unit, j.detail AS detail, j.state AS state,
  j.owner AS owner, timestamp() - j.updated AS silent, head(labels(n)) AS label, n.id AS thing
ORDER BY started DESC, id DESC LIMIT $most
