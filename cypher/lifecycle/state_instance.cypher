// In what state the instance of this id is; no row if there is none. The one read that sees unfinished ones by id.
//
// mode: reads
// param id: string — the instance's id
// column state: string — ready, building or deleting
// column owner: string? — the process that builds or deletes it
// column expired: boolean — its builder has not been heard of for as long as it said
MATCH (n:Instance {id: $id})
RETURN n.state AS state, n.owner AS owner, coalesce(n.lease < timestamp(), false) AS expired
