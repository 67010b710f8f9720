// Make an existing instance the newest of a user.
//
// mode: writes
// param id: string — the instance's id
// param user: string — the user
MATCH (n:Instance {id: $id, state: 'ready'})
MERGE (u:User {id: $user})
MERGE (u)-[a:ASKED_FOR]->(n)
SET a.time = timestamp()
