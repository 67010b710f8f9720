// Remove a name of an instance. No row if it means another one by now.
//
// mode: writes
// param id: string — the instance's id
// param name: string — the name's id
// param user: string — the user
// param event: map — the properties of `Event`
// column id: string — the instance's id
MATCH (a:Name {id: $name})-[:NAMES]->(n:Instance {id: $id})-[:OF]->(g:Graph)
SET n.name = CASE WHEN n.name = a.name THEN g.name ELSE n.name END
WITH n, a
DETACH DELETE a
MERGE (u:User {id: $user})
MERGE (e:Event {id: $event.id})
SET e += $event
MERGE (e)-[:DONE_BY]->(u)
RETURN n.id AS id
