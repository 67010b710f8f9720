// All complete symbolic graphs, the newest first.
//
// mode: reads
// column id: string — digest of the model, the options and the format
// column name: string — the model's name
// column recipe: string — the framework that the graph follows
// column options: string — the graph's options, as JSON
// column sizes: string — the model's symbols and their values, as JSON
// column created: integer [ms] — when it was made, since 1970 (UTC)
// column builder: string? — the process that made it
MATCH (g:Graph {state: 'ready'})
RETURN g.id AS id, g.name AS name, g.recipe AS recipe, g.options AS options, g.sizes AS sizes, g.created AS created,
  g.builder AS builder
ORDER BY created DESC, id
