// Make a profile invisible and begin to delete it. No row if a living process has it.
//
// mode: writes
// param id: string — the profile's id
// param owner: string — who deletes it
// param lease: integer [ms] — for how long, from now
// param dead: string — an owner that is known to have died; empty if none is
// column id: string — the profile's id
MATCH (p:Profile {id: $id})
SET p.claim = $owner
WITH p
WHERE p.state = 'ready' OR p.owner = $owner OR p.owner = $dead OR p.lease < timestamp()
SET p.state = 'deleting', p.owner = $owner, p.lease = timestamp() + $lease
RETURN p.id AS id
