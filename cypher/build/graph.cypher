// The row of a complete graph; no row if the store has no complete graph of this id.
//
// mode: reads
// param id: string — the graph's id
// column name: string — the model's name
// column recipe: string — the framework that the graph follows
// column options: string — the options that shaped it, as JSON
// column sizes: string — the model's sizes, as JSON
// column blocks: string — its blocks in forward order, as JSON
// column format: integer — version of the stored form
MATCH (g:Graph {id: $id, state: 'ready'})
RETURN g.name AS name, g.recipe AS recipe, g.options AS options, g.sizes AS sizes, g.blocks AS blocks,
  g.format AS format
