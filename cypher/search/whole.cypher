// Whether a search that is merged from shards can be written. No row if there is none yet.
//
// mode: reads
// param search: string — the search's id
// column state: string — ready, building or deleting
// column covered: boolean — every plan was tried or ruled out by a bound
// column finished: integer[]? — finished shards that it is merged from; null if it was searched without shards
MATCH (s:Search {id: $search})
RETURN s.state AS state, coalesce(s.covered, false) AS covered, s.finished AS finished
