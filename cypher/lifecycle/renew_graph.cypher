// Show that the builder of a graph is alive. No row if another process has it now.
//
// mode: writes
// param id: string — the graph's id
// param owner: string — who builds it
// param lease: integer [ms] — for how long the builder counts as alive, from now
// column id: string — the graph's id
MATCH (n:Graph {id: $id})
WHERE n.owner = $owner
SET n.lease = timestamp() + $lease
RETURN n.id AS id
