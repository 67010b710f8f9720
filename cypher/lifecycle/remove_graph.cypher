// Delete the node of a graph whose members are gone.
//
// mode: writes
// param id: string — the graph's id
// param owner: string — who deletes it
MATCH (n:Graph {id: $id})
WHERE n.owner = $owner
DETACH DELETE n
