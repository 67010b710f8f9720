// Begin to build a profile, or take over from a builder that died. The first SET takes the write lock, so that
// the second of two simultaneous claims sees the result of the first one. No row if its instance is gone or being deleted.
//
// mode: writes
// param id: string — the profile's id
// param owner: string — who claims it
// param lease: integer [ms] — for how long, from now
// param dead: string — an owner that is known to have died; empty if none is
// param properties: map — the properties that it gets
// column owner: string — who has it now
// column taken: boolean — another process began it before
MATCH (of:Instance {id: $properties.instance, state: 'ready'})
MERGE (n:Profile {id: $id})
ON CREATE SET n.state = 'building', n.owner = $owner, n.lease = 0, n.created = timestamp()
SET n.claim = $owner
WITH n, of, n.owner AS former,
  n.state <> 'ready' AND (n.owner = $owner OR n.owner = $dead OR n.lease < timestamp()) AS free
FOREACH (x IN CASE WHEN free THEN [1] ELSE [] END |
  SET n += $properties
  SET n.state = 'building', n.owner = $owner, n.builder = $owner, n.lease = timestamp() + $lease
)
MERGE (n)-[:OF]->(of)
RETURN n.owner AS owner, former <> $owner AS taken
