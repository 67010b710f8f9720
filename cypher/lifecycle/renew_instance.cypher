// Say that the builder of an instance lives. No row if it is another's by now.
//
// mode: writes
// param id: string — the instance's id
// param owner: string — who builds it
// param lease: integer [ms] — for how long it is to be believed, from now
// column id: string — the instance's id
MATCH (n:Instance {id: $id})
WHERE n.owner = $owner
SET n.lease = timestamp() + $lease
RETURN n.id AS id
