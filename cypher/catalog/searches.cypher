// All complete searches, the newest first.
//
// mode: reads
// column id: string — digest of what was asked
// column model: string — the model's name
// column request: string — all that was asked, as JSON
// column size: integer — plans whose degrees divide
// column timed: integer — plans that were timed
// column covered: boolean — every plan was tried or ruled out by a bound
// column step: integer? [ns] — step of the best plan; null if none that fits was found
// column peak: integer? [B] — what the fullest rank of the best plan holds
// column left: integer? [ns] — no plan that was not tried has a shorter step; null if all were
// column seconds: float [s] — time of the search
// column shard: integer? — of a shard of a search: its number, from 1
// column shards: integer? — how many shards the search is cut into
// column finished: integer[]? — of a search that was merged from shards: those that are finished
// column whole: string? — of a shard: id of the search
// column created: integer [ms] — when it was made, since 1970 (UTC)
// column builder: string? — the process that made it
MATCH (s:Search {state: 'ready'})
RETURN s.id AS id, s.model AS model, s.request AS request, s.size AS size, s.timed AS timed, s.covered AS covered,
  s.step AS step, s.peak AS peak, s.left AS left, s.seconds AS seconds,
  s.shard AS shard, s.shards AS shards, s.finished AS finished, s.whole AS whole,
  s.created AS created, s.builder AS builder
ORDER BY created DESC, id
