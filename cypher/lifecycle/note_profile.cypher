// Write a note about a profile. No row if there is none.
//
// mode: writes
// param id: string — the profile's id
// param note: string — the note's id, unique in the store
// param text: string — the note
// param user: string — the user
// param event: map — the properties of `Event`
// column id: string — the profile's id
MATCH (n:Profile {id: $id, state: 'ready'})
MERGE (u:User {id: $user})
MERGE (e:Event {id: $event.id})
SET e += $event
MERGE (e)-[:DONE_BY]->(u)
MERGE (m:Note {id: $note})
SET m.text = $text, m.time = $event.time
MERGE (m)-[:ABOUT]->(n)
MERGE (m)-[:DONE_BY]->(u)
RETURN n.id AS id
