// In what state the instance of this id is; no row if there is none. The one read that sees unfinished ones by id.
//
// mode: reads
// param id: string — the instance's id
// column state: string — ready, building or deleting
// column owner: string? — the process that builds or deletes it
// column expired: boolean — its builder has not been heard of for as long as it said
MATCH (i:Instance {id: $id})
RETURN i.state AS state, i.owner AS owner, coalesce(i.lease < timestamp(), false) AS expired
