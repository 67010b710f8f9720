// Make an instance invisible and begin to delete it. No row if a living process has it.
//
// mode: writes
// param id: string — the instance's id
// param owner: string — who deletes it
// param lease: integer [ms] — for how long, from now
// param dead: string — an owner that is known to have died; empty if none is
// column id: string — the instance's id
MATCH (i:Instance {id: $id})
SET i.claim = $owner
WITH i
WHERE i.state = 'ready' OR i.owner = $owner OR i.owner = $dead OR i.lease < timestamp()
SET i.state = 'deleting', i.owner = $owner, i.lease = timestamp() + $lease
RETURN i.id AS id
