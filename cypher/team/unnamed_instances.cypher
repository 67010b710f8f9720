// Instances that nobody named or tagged, or made or asked for since a time.
//
// mode: reads
// param before: integer [ms since 1970] — the time
// column id: string — the instance's id
// column name: string? — what it is called
// column builder: string? — the process that made it
// column created: integer [ms since 1970] — when it was made
// column parts: string[] — ids of its profiles, unfinished ones too
MATCH (i:Instance {state: 'ready'})
WHERE i.created < $before
OPTIONAL MATCH (a:Name|Tag)-[:NAMES|TAGS]->(i)
WITH i, count(a) AS named
WHERE named = 0
OPTIONAL MATCH (:User)-[r:ASKED_FOR]->(i)
WITH i, max(r.time) AS asked
WHERE coalesce(asked, 0) < $before
OPTIONAL MATCH (p:Profile)-[:OF]->(i)
WITH i, collect(p.id) AS parts
RETURN i.id AS id, i.name AS name, i.builder AS builder, i.created AS created, parts
ORDER BY id
