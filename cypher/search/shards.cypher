// The shards of a search, finished or not.
//
// mode: reads
// param model: string — the model's name
// param search: string — the search's id
// column id: string — the shard's own id
// column number: integer — its number, from 1
// column of: integer — how many shards the search is cut into
// column state: string — ready, building or deleting
// column owner: string? — the process that runs or deletes it
// column builder: string? — the process that ran it last
// column expired: boolean — that process shows no sign of life
// column covered: boolean — all plans of it were tried or ruled out
// column limits: float[] — what its best plans have of what is to be small, ascending on each number of ranks
// column limit_ranks: integer[] [ranks] — on how many ranks each of these is; empty if the search is over one number
MATCH (s:Search {model: $model})
WHERE s.whole = $search
RETURN s.id AS id, s.shard AS number, s.shards AS of, s.state AS state, s.owner AS owner, s.builder AS builder,
  coalesce(s.lease < timestamp(), false) AS expired, coalesce(s.covered, false) AS covered,
  coalesce(s.limits, []) AS limits, coalesce(s.limit_ranks, []) AS limit_ranks
ORDER BY number, of
