// Delete the node of an instance whose members are gone.
//
// mode: writes
// param id: string — the instance's id
// param owner: string — who deletes it
MATCH (n:Instance {id: $id})
WHERE n.owner = $owner
DETACH DELETE n
