// Make a graph visible: it is complete. No row if another process has it now.
//
// mode: writes
// param id: string — the graph's id
// param owner: string — who built it
// column id: string — the graph's id
MATCH (n:Graph {id: $id})
WHERE n.owner = $owner OR (n.state = 'ready' AND n.builder = $owner)
SET n.state = 'ready'
REMOVE n.owner, n.lease
RETURN n.id AS id
