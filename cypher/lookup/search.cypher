// The complete searches that a word may mean, by the start of their ids.
//
// mode: reads
// param word: string — the word
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
// column tags: string[] — its tags
// column notes: string[] — texts of the notes about it
// column loaded: string[] — which of these came with a dump, and from where
MATCH (s:Search)
WHERE size($word) >= 4 AND s.id STARTS WITH $word AND s.state = 'ready'
OPTIONAL MATCH (t:Tag)-[r:TAGS]->(s)
WITH s, collect(t.id) AS tags, collect('tag ' + t.id + ' ' + r.origin) AS loaded_tags
OPTIONAL MATCH (m:Note)-[:ABOUT]->(s)
WITH s, tags, loaded_tags, collect(m.text) AS notes,
  collect('note ' + substring(m.text, 0, 40) + ' ' + m.origin) AS loaded_notes
RETURN s.id AS id, s.model AS model, s.request AS request, s.size AS size, s.timed AS timed, s.covered AS covered,
  s.step AS step, s.peak AS peak, s.left AS left, s.seconds AS seconds,
  s.shard AS shard, s.shards AS shards, s.finished AS finished, s.whole AS whole,
  s.created AS created, s.builder AS builder,
  tags, notes, loaded_tags + loaded_notes AS loaded
ORDER BY created DESC, id
