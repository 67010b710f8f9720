// The graphs that do not have options and sizes as properties yet.
//
// mode: reads
// column id: string — the graph's id
// column options: string — as JSON
// column sizes: string — as JSON
MATCH (g:Graph)
WHERE g.schema IS NULL
RETURN g.id AS id, g.options AS options, g.sizes AS sizes
ORDER BY id
