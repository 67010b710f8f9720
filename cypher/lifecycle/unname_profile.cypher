// Remove a name of a profile. No row if it means another one by now.
//
// mode: writes
// param id: string — the profile's id
// param name: string — the name's id
// param user: string — the user
// param event: map — the properties of `Event`
// column id: string — the profile's id
MATCH (a:Name {id: $name})-[:NAMES]->(n:Profile {id: $id})
SET n.name = CASE WHEN n.name = a.name THEN null ELSE n.name END
WITH n, a
DETACH DELETE a
MERGE (u:User {id: $user})
MERGE (e:Event {id: $event.id})
SET e += $event
MERGE (e)-[:DONE_BY]->(u)
RETURN n.id AS id
