// Say that the builder of a profile lives. No row if it is another's by now.
//
// mode: writes
// param id: string — the profile's id
// param owner: string — who builds it
// param lease: integer [ms] — for how long it is to be believed, from now
// column id: string — the profile's id
MATCH (n:Profile {id: $id})
WHERE n.owner = $owner
SET n.lease = timestamp() + $lease
RETURN n.id AS id
