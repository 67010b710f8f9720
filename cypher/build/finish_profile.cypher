// Make a profile visible: it is whole. No row if it is another's by now, or its instance is gone or being deleted.
//
// mode: writes
// param id: string — the profile's id
// param owner: string — who built it
// column id: string — the profile's id
MATCH (p:Profile {id: $id})
WHERE p.owner = $owner OR (p.state = 'ready' AND p.builder = $owner)
MATCH (:Instance {id: p.instance, state: 'ready'})
SET p.state = 'ready'
REMOVE p.owner, p.lease
RETURN p.id AS id
