// The complete graphs that a word may mean: by the start of their ids, and by the name of their model.
//
// mode: reads
// param word: string — the word
// column id: string — digest of the model, the options and the format
// column name: string — the model's name
// column recipe: string — the framework that the graph follows
// column options: string — the graph's options, as JSON
// column sizes: string — the model's symbols and their values, as JSON
// column created: integer [ms] — when it was made, since 1970 (UTC)
// column builder: string? — the process that made it
// column tags: string[] — its tags
// column notes: string[] — texts of the notes about it
// column loaded: string[] — which of these came with a dump, and from where
MATCH (a:Graph)
WHERE size($word) >= 4 AND a.id STARTS WITH $word
WITH collect(a) AS begun
OPTIONAL MATCH (b:Graph {name: $word})
WITH begun, collect(b) AS called
UNWIND begun + called AS f
WITH DISTINCT f AS g
WHERE g.state = 'ready'
OPTIONAL MATCH (t:Tag)-[r:TAGS]->(g)
WITH g, collect(t.id) AS tags,
  collect('tag ' + t.id + ' ' + r.origin) AS loaded_tags
OPTIONAL MATCH (m:Note)-[:ABOUT]->(g)
WITH g, tags, loaded_tags, collect(m.text) AS notes,
  collect('note ' + substring(m.text, 0, 40) + ' ' + m.origin) AS loaded_notes
RETURN g.id AS id, g.name AS name, g.recipe AS recipe, g.options AS options, g.sizes AS sizes, g.created AS created,
  g.builder AS builder, tags, notes, loaded_tags + loaded_notes AS loaded
ORDER BY created DESC, id
