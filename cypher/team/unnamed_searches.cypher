// Searches that nobody tagged, or made since a time.
//
// mode: reads
// param before: integer [ms since 1970] — the time
// column id: string — the search's id
// column name: string? — the model's name
// column builder: string? — the process that made it
// column created: integer [ms since 1970] — when it was made
// column parts: string[] — nothing is made from a search
MATCH (s:Search {state: 'ready'})
WHERE s.created < $before
OPTIONAL MATCH (t:Tag)-[:TAGS]->(s)
WITH s, count(t) AS named
WHERE named = 0
RETURN s.id AS id, s.model AS name, s.builder AS builder, s.created AS created, [] AS parts
ORDER BY id
