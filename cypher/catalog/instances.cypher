// All complete instances, the newest first.
//
// mode: reads
// column id: string — digest of the graph and the plan
// column name: string — what it is called where nobody names it
// column graph: string — id of its graph
// column model: string — name of the model
// column recipe: string — the framework that the graph follows
// column plan: string — the plan's words, as JSON
// column ranks: integer — size of the world
// column classes: integer — number of rank classes
// column created: integer [ms] — when it was made, since 1970 (UTC)
// column builder: string? — the process that made it
// column claim: string? — the process that last asked for it
MATCH (i:Instance {state: 'ready'})-[:OF]->(g:Graph)
MATCH (i)-[:HAS_CLASS]->(c:RankClass)
WITH i, g, count(c) AS classes
RETURN i.id AS id, i.name AS name, i.graph AS graph, g.name AS model, g.recipe AS recipe, i.plan AS plan,
  i.world AS ranks, classes, i.created AS created, i.builder AS builder, i.claim AS claim
ORDER BY created DESC, id
