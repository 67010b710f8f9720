// Make an instance visible: it is whole. No row if it is another's by now.
//
// mode: writes
// param id: string — the instance's id
// param owner: string — who built it
// column id: string — the instance's id
MATCH (i:Instance {id: $id})
WHERE i.owner = $owner OR (i.state = 'ready' AND i.builder = $owner)
SET i.state = 'ready'
REMOVE i.owner, i.lease
RETURN i.id AS id
