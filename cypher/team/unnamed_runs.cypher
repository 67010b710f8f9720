// Runs that nobody named or tagged, or made or asked for since a time.
//
// mode: reads
// param before: integer [ms since 1970] — the time
// column id: string — the run's id
// column name: string? — what it is called
// column builder: string? — the process that made it
// column created: integer [ms since 1970] — when it was made
// column parts: string[] — nothing is made from a run
MATCH (r:Run {state: 'ready'})
WHERE r.created < $before
OPTIONAL MATCH (a:Name|Tag)-[:NAMES|TAGS]->(r)
WITH r, count(a) AS named
WHERE named = 0
OPTIONAL MATCH (:User)-[a:ASKED_FOR]->(r)
WITH r, max(a.time) AS asked
WHERE coalesce(asked, 0) < $before
RETURN r.id AS id, r.name AS name, r.builder AS builder, r.created AS created, [] AS parts
ORDER BY id
