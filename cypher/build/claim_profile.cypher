// Begin to write a profile, or take over from a writer that died. The first SET takes the write lock, so that of two
// claims at once the second sees what the first one decided. No row if its instance is not there, or is being deleted.
//
// mode: writes
// param id: string — the profile's id
// param owner: string — who claims it
// param lease: integer [ms] — for how long, from now
// param dead: string — an owner that is known to have died; empty if none is
// param properties: map — the properties that it is to have, its instance among them
// column owner: string — who has it now
// column taken: boolean — it was begun before, by another
MATCH (:Instance {id: $properties.instance, state: 'ready'})
MERGE (p:Profile {id: $id})
ON CREATE SET p.state = 'building', p.owner = $owner, p.lease = 0, p.created = timestamp()
SET p.claim = $owner
WITH p, p.owner AS former,
  p.state <> 'ready' AND (p.owner = $owner OR p.owner = $dead OR p.lease < timestamp()) AS free
FOREACH (x IN CASE WHEN free THEN [1] ELSE [] END |
  SET p += $properties
  SET p.state = 'building', p.owner = $owner, p.builder = $owner, p.lease = timestamp() + $lease
)
RETURN p.owner AS owner, former <> $owner AS taken
