// Take a tag off a graph. No row if it does not have it.
//
// mode: writes
// param id: string — the graph's id
// param tag: string — the word
// param user: string — the user
// param event: map — the properties of `Event`
// column id: string — the graph's id
MATCH (:Tag {id: $tag})-[r:TAGS]->(n:Graph {id: $id})
DELETE r
MERGE (u:User {id: $user})
MERGE (e:Event {id: $event.id})
SET e += $event
MERGE (e)-[:DONE_BY]->(u)
RETURN n.id AS id
