// Make an existing profile the newest of a user.
//
// mode: writes
// param id: string — the profile's id
// param user: string — the user
MATCH (n:Profile {id: $id, state: 'ready'})
MERGE (u:User {id: $user})
MERGE (u)-[a:ASKED_FOR]->(n)
SET a.time = timestamp()
