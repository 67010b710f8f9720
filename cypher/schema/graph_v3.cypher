// Give a graph that schema 3 wrote the properties that it has now.
//
// mode: writes
// param id: string — the graph's id
// param properties: map — options and sizes, a property each, and the schema's version
MATCH (g:Graph {id: $id})
SET g += $properties
