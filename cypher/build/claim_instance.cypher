// Begin to build an instance, or take over from a builder that died. The first SET takes the write lock, so that of two
// claims at once the second sees what the first one decided.
//
// mode: writes
// param id: string — the instance's id
// param owner: string — who claims it
// param lease: integer [ms] — for how long, from now
// param dead: string — an owner that is known to have died; empty if none is
// param properties: map — the properties that it is to have
// column owner: string — who has it now
// column taken: boolean — it was begun before, by another
MERGE (i:Instance {id: $id})
ON CREATE SET i.state = 'building', i.owner = $owner, i.lease = 0, i.created = timestamp()
SET i.claim = $owner
WITH i, i.owner AS former,
  i.state <> 'ready' AND (i.owner = $owner OR i.owner = $dead OR i.lease < timestamp()) AS free
FOREACH (x IN CASE WHEN free THEN [1] ELSE [] END |
  SET i += $properties
  SET i.state = 'building', i.owner = $owner, i.builder = $owner, i.lease = timestamp() + $lease
)
RETURN i.owner AS owner, former <> $owner AS taken
