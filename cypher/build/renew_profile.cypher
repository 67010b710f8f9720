// Say that the builder of a profile lives. No row if it is another's by now.
//
// mode: writes
// param id: string — the profile's id
// param owner: string — who builds it
// param lease: integer [ms] — for how long it is to be believed, from now
// column id: string — the profile's id
MATCH (p:Profile {id: $id})
WHERE p.owner = $owner
SET p.lease = timestamp() + $lease
RETURN p.id AS id
