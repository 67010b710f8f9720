// Delete the node of a profile whose members are gone.
//
// mode: writes
// param id: string — the profile's id
// param owner: string — who deletes it
MATCH (n:Profile {id: $id})
WHERE n.owner = $owner
DETACH DELETE n
