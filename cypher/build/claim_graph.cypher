// Begin to build a graph, or take over from a builder that died. The first SET takes the write lock, so that of two
// claims at once the second sees what the first one decided.
//
// mode: writes
// param id: string — the graph's id
// param owner: string — who claims it
// param lease: integer [ms] — for how long, from now
// param dead: string — an owner that is known to have died; empty if none is
// param properties: map — the properties that it is to have
// column owner: string — who has it now
// column taken: boolean — it was begun before, by another
MERGE (g:Graph {id: $id})
ON CREATE SET g.state = 'building', g.owner = $owner, g.lease = 0, g.created = timestamp()
SET g.claim = $owner
WITH g, g.owner AS former,
  g.state <> 'ready' AND (g.owner = $owner OR g.owner = $dead OR g.lease < timestamp()) AS free
FOREACH (x IN CASE WHEN free THEN [1] ELSE [] END |
  SET g += $properties
  SET g.state = 'building', g.owner = $owner, g.builder = $owner, g.lease = timestamp() + $lease
)
RETURN g.owner AS owner, former <> $owner AS taken
