// Delete a saved query. No row if there is none.
//
// mode: writes
// param id: string — the space, /, and the name
// param user: string — the user
// param event: map — the properties of `Event`
// column name: string — its name
MATCH (q:SavedQuery {id: $id})
WITH q, q.name AS name
DELETE q
MERGE (u:User {id: $user})
MERGE (e:Event {id: $event.id})
SET e += $event
MERGE (e)-[:DONE_BY]->(u)
RETURN name
