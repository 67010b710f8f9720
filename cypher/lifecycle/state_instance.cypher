// The state of the instance with this id; no row if there is none. No other statement finds unfinished ones by id.
//
// mode: reads
// param id: string — the instance's id
// column state: string — ready, building or deleting
// column owner: string? — the process that builds or deletes it
// column expired: boolean — its lease has run out
MATCH (n:Instance {id: $id})
RETURN n.state AS state, n.owner AS owner, coalesce(n.lease < timestamp(), false) AS expired
