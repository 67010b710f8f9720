// What a complete search asked and found in all, without its candidates. No row if there is none.
//
// mode: reads
// param search: string — the search's id
// column request: string — all that was asked, as JSON
// column format: integer — version of the stored form
// column size: integer — plans whose degrees divide
// column covered: boolean — every plan was tried or ruled out by a bound
// column left: integer? [ns] — no plan that was not tried has a shorter step; null if all were
// column seconds: float [s] — time of the search
// column shards: integer? — of a search that was merged from shards: how many there are
// column finished: integer[]? — those that are finished, by their numbers from 1
MATCH (s:Search {id: $search, state: 'ready'})
RETURN s.request AS request, s.format AS format, s.size AS size, s.covered AS covered, s.left AS left,
  s.seconds AS seconds, s.shards AS shards, s.finished AS finished
