// Say that the builder of a graph lives. No row if it is another's by now.
//
// mode: writes
// param id: string — the graph's id
// param owner: string — who builds it
// param lease: integer [ms] — for how long it is to be believed, from now
// column id: string — the graph's id
MATCH (n:Graph {id: $id})
WHERE n.owner = $owner
SET n.lease = timestamp() + $lease
RETURN n.id AS id
