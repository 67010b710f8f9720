// Make a graph invisible and begin to delete it. No row if a living process has it.
//
// mode: writes
// param id: string — the graph's id
// param owner: string — who deletes it
// param lease: integer [ms] — for how long, from now
// param dead: string — an owner that is known to have died; empty if none is
// column id: string — the graph's id
MATCH (g:Graph {id: $id})
SET g.claim = $owner
WITH g
WHERE g.state = 'ready' OR g.owner = $owner OR g.owner = $dead OR g.lease < timestamp()
SET g.state = 'deleting', g.owner = $owner, g.lease = timestamp() + $lease
RETURN g.id AS id
