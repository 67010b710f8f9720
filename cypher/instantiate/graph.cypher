// The row of a complete graph; no row if the store has no complete graph of this id.
//
// mode: reads
// param graph: string — the graph's id
// column name: string — the model's name
// column options: string — the options that shaped it, a JSON object
// column sizes: string — the model's sizes, a JSON object of integers
// column blocks: string — its blocks in forward order, a JSON list of objects with name, repeat and, where kinds of layers alternate, layers
// column format: integer — version of the stored form
MATCH (g:Graph {id: $graph, state: 'ready'})
RETURN g.name AS name, g.options AS options, g.sizes AS sizes, g.blocks AS blocks, g.format AS format
