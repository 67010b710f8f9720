// Make an instance visible: it is complete. No row if another process has it now, or its graph is gone or being deleted.
//
// mode: writes
// param id: string — the instance's id
// param owner: string — who built it
// column id: string — the instance's id
MATCH (n:Instance {id: $id})
WHERE n.owner = $owner OR (n.state = 'ready' AND n.builder = $owner)
MATCH (n)-[:OF]->(:Graph {state: 'ready'})
SET n.state = 'ready'
REMOVE n.owner, n.lease
RETURN n.id AS id
