// Make an instance visible: it is complete. No row if another process has it now, or its graph is gone or being deleted.
//
// mode: writes
// param id: string — the instance's id
// param owner: string — who built it
// param user: string — the user
// param event: map — who made it, when and how: the properties of `Event`
// param inputs: map[] — what it was made from: id, kind, name
// column id: string — the instance's id
MATCH (n:Instance {id: $id})
WHERE n.owner = $owner OR (n.state = 'ready' AND n.builder = $owner)
MATCH (n)-[:OF]->(of:Graph)
SET of.claim = $owner
WITH n, of
WHERE of.state = 'ready'
SET n.state = 'ready'
REMOVE n.owner, n.lease
MERGE (u:User {id: $user})
MERGE (e:Event {id: $event.id})
SET e += $event
MERGE (e)-[:DONE_BY]->(u)
MERGE (e)-[:MADE]->(n)
FOREACH (row IN $inputs |
  MERGE (x:Input {id: row.id})
  ON CREATE SET x.kind = row.kind, x.name = row.name
  MERGE (e)-[:USED]->(x)
)
RETURN n.id AS id
