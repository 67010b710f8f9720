// Save a query for the team, or replace the one of this name.
//
// mode: writes
// param id: string — the space, /, and the name
// param properties: map — the properties of `SavedQuery`
// param user: string — the user
// param event: map — the properties of `Event`
MERGE (q:SavedQuery {id: $id})
SET q += $properties, q.origin = null
MERGE (u:User {id: $user})
MERGE (e:Event {id: $event.id})
SET e += $event
MERGE (e)-[:DONE_BY]->(u)
