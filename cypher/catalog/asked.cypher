// When a user asked for instances and profiles that existed.
//
// mode: reads
// param user: string — the user
// column id: string — id of what was asked for
// column time: integer [ms] — when, since 1970 (UTC)
MATCH (:User {id: $user})-[a:ASKED_FOR]->(thing)
RETURN thing.id AS id, a.time AS time
ORDER BY id, time
