// The state of the profile with this id; no row if there is none. No other statement finds unfinished ones by id.
//
// mode: reads
// param id: string — the profile's id
// column state: string — ready, building or deleting
// column owner: string? — the process that builds or deletes it
// column expired: boolean — its lease has run out
MATCH (n:Profile {id: $id})
RETURN n.state AS state, n.owner AS owner, coalesce(n.lease < timestamp(), false) AS expired
