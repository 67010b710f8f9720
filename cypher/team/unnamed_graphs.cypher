// Graphs that nobody tagged, or made since a time.
//
// mode: reads
// param before: integer [ms since 1970] — the time
// column id: string — the graph's id
// column name: string? — the model's name
// column builder: string? — the process that made it
// column created: integer [ms since 1970] — when it was made
// column parts: string[] — ids of its instances, unfinished ones too
MATCH (g:Graph {state: 'ready'})
WHERE g.created < $before
OPTIONAL MATCH (t:Tag)-[:TAGS]->(g)
WITH g, count(t) AS named
WHERE named = 0
OPTIONAL MATCH (i:Instance)-[:OF]->(g)
WITH g, collect(i.id) AS parts
RETURN g.id AS id, g.name AS name, g.builder AS builder, g.created AS created, parts
ORDER BY id
