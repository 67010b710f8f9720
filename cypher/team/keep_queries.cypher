// Write saved queries that came from another store. A query that is there stays as it is.
//
// mode: writes
// param rows: map[] — id; properties: of `SavedQuery`; event: of `Event`
// param user: string — the user who loads them
UNWIND $rows AS row
MERGE (q:SavedQuery {id: row.id})
ON CREATE SET q += row.properties
MERGE (u:User {id: $user})
MERGE (e:Event {id: row.event.id})
SET e += row.event
MERGE (e)-[:DONE_BY]->(u)
