// Write notes about runs that came from another store.
//
// mode: writes
// param rows: map[] — id: of the note; thing: id of the run; text, time; author: who wrote it, by the dump; origin; event: of `Event`
// param user: string — the user who loads them
UNWIND $rows AS row
MATCH (x:Run {id: row.thing, state: 'ready'})
MERGE (m:Note {id: row.id})
ON CREATE SET m.text = row.text, m.time = row.time, m.origin = row.origin
MERGE (m)-[:ABOUT]->(x)
MERGE (a:User {id: row.author})
MERGE (m)-[:DONE_BY]->(a)
MERGE (u:User {id: $user})
MERGE (e:Event {id: row.event.id})
SET e += row.event
MERGE (e)-[:DONE_BY]->(u)
