// Write tags of runs that came from another store.
//
// mode: writes
// param rows: map[] — tag; thing: id of the run; values: properties of `TAGS`; event: of `Event`
// param user: string — the user who loads them
UNWIND $rows AS row
MATCH (x:Run {id: row.thing, state: 'ready'})
MERGE (t:Tag {id: row.tag})
MERGE (t)-[r:TAGS]->(x)
ON CREATE SET r += row.values
MERGE (u:User {id: $user})
MERGE (e:Event {id: row.event.id})
SET e += row.event
MERGE (e)-[:DONE_BY]->(u)
