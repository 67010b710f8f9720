// Make a graph visible: it is whole. No row if it is another's by now.
//
// mode: writes
// param id: string — the graph's id
// param owner: string — who built it
// column id: string — the graph's id
MATCH (g:Graph {id: $id})
WHERE g.owner = $owner OR (g.state = 'ready' AND g.builder = $owner)
SET g.state = 'ready'
REMOVE g.owner, g.lease
RETURN g.id AS id
