// Delete the node of an instance whose members are gone.
//
// mode: writes
// param id: string — the instance's id
// param owner: string — who deletes it
MATCH (i:Instance {id: $id})
WHERE i.owner = $owner
DETACH DELETE i
