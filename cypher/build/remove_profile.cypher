// Delete the node of a profile whose members are gone.
//
// mode: writes
// param id: string — the profile's id
// param owner: string — who deletes it
MATCH (p:Profile {id: $id})
WHERE p.owner = $owner
DETACH DELETE p
