// Delete the node of a graph whose members are gone.
//
// mode: writes
// param id: string — the graph's id
// param owner: string — who deletes it
MATCH (g:Graph {id: $id})
WHERE g.owner = $owner
DETACH DELETE g
