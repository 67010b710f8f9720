// Make a profile visible: it is complete. No row if another process has it now, or its instance is gone or being deleted.
//
// mode: writes
// param id: string — the profile's id
// param owner: string — who built it
// column id: string — the profile's id
MATCH (n:Profile {id: $id})
WHERE n.owner = $owner OR (n.state = 'ready' AND n.builder = $owner)
MATCH (n)-[:OF]->(:Instance {state: 'ready'})
SET n.state = 'ready'
REMOVE n.owner, n.lease
RETURN n.id AS id
