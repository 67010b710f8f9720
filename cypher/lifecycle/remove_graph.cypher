// Delete the node of a graph whose members are gone, with its names and notes.
//
// mode: writes
// param id: string — the graph's id
// param owner: string — who deletes it
// param user: string — the user
// param events: map[] — the event of its removal, the properties of `Event`; none for one that was never complete
MATCH (n:Graph {id: $id})
WHERE n.owner = $owner
OPTIONAL MATCH (note:Note)-[:ABOUT]->(n)
WITH n, collect(note) AS notes
FOREACH (x IN notes | DETACH DELETE x)
FOREACH (row IN $events |
  MERGE (u:User {id: $user})
  MERGE (e:Event {id: row.id})
  SET e += row
  MERGE (e)-[:DONE_BY]->(u)
)
DETACH DELETE n
