// Write names of runs that came from another store. A name that is there means what it meant.
//
// mode: writes
// param rows: map[] — name: id of the name; thing: id of the run; properties: of `Name`; event: of `Event`
// param user: string — the user who loads them
UNWIND $rows AS row
MATCH (x:Run {id: row.thing, state: 'ready'})
MERGE (n:Name {id: row.name})
ON CREATE SET n += row.properties
WITH row, n, x
OPTIONAL MATCH (n)-[:NAMES]->(old)
WITH row, n, x, old WHERE old IS NULL
CREATE (n)-[:NAMES]->(x)
MERGE (u:User {id: $user})
MERGE (e:Event {id: row.event.id})
SET e += row.event
MERGE (e)-[:DONE_BY]->(u)
