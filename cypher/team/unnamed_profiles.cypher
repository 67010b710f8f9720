// Profiles that nobody named or tagged, or made or asked for since a time.
//
// mode: reads
// param before: integer [ms since 1970] — the time
// column id: string — the profile's id
// column name: string? — what it is called
// column builder: string? — the process that made it
// column created: integer [ms since 1970] — when it was made
// column parts: string[] — nothing is made from a profile
MATCH (p:Profile {state: 'ready'})
WHERE p.created < $before
OPTIONAL MATCH (a:Name|Tag)-[:NAMES|TAGS]->(p)
WITH p, count(a) AS named
WHERE named = 0
OPTIONAL MATCH (:User)-[r:ASKED_FOR]->(p)
WITH p, max(r.time) AS asked
WHERE coalesce(asked, 0) < $before
RETURN p.id AS id, p.name AS name, p.builder AS builder, p.created AS created, [] AS parts
ORDER BY id
