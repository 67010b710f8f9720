// The row of a complete instance; no row if the store has no complete instance of this id.
//
// mode: reads
// param instance: string — the instance's id
// column name: string — what it was called
// column graph: string — id of its graph
// column model: string — name of the model
// column plan: string — the plan's words, as JSON
// column world: integer [ranks] — size of the world
// column ranks_digest: string? — digest of the ranks that it was given; absent in instances from before schema 5
// column groups_digest: string? — digest of its groups
MATCH (i:Instance {id: $instance, state: 'ready'})-[:OF]->(g:Graph)
RETURN i.name AS name, i.graph AS graph, g.name AS model, i.plan AS plan, i.world AS world,
  i.ranks_digest AS ranks_digest, i.groups_digest AS groups_digest
