// Let a name mean a profile. Setting the name's properties takes its lock. No row if there is no such profile.
//
// mode: writes
// param id: string — the profile's id
// param name: string — the name's id
// param properties: map — the properties of `Name`
// param user: string — the user
// param event: map — the properties of `Event`
// column moved: string? — the id of the profile that it meant before
MATCH (n:Profile {id: $id, state: 'ready'})
MERGE (a:Name {id: $name})
SET a += $properties, a.origin = null
WITH n, a
OPTIONAL MATCH (a)-[old:NAMES]->(o:Profile)
WITH n, a, old, o, null AS title
FOREACH (x IN CASE WHEN o.name = $properties.name AND o.id <> n.id THEN [o] ELSE [] END | SET x.name = title)
FOREACH (x IN CASE WHEN old IS NULL THEN [] ELSE [old] END | DELETE x)
CREATE (a)-[:NAMES]->(n)
MERGE (u:User {id: $user})
MERGE (e:Event {id: $event.id})
SET e += $event
MERGE (e)-[:DONE_BY]->(u)
RETURN CASE WHEN o.id <> n.id THEN o.id END AS moved
