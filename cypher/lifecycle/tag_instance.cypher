// Tag an instance with a word. No row if there is none.
//
// mode: writes
// param id: string — the instance's id
// param tag: string — the word
// param user: string — the user
// param event: map — the properties of `Event`
// column id: string — the instance's id
MATCH (n:Instance {id: $id, state: 'ready'})
MERGE (t:Tag {id: $tag})
MERGE (t)-[r:TAGS]->(n)
ON CREATE SET r.user = $user, r.time = timestamp()
SET r.origin = null
MERGE (u:User {id: $user})
MERGE (e:Event {id: $event.id})
SET e += $event
MERGE (e)-[:DONE_BY]->(u)
RETURN n.id AS id
