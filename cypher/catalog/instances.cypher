// All complete instances, the newest first.
//
// mode: reads
// param user: string — whose requests are read
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
// column names: string[] — its names, as space/name
// column tags: string[] — its tags
// column notes: string[] — notes about it
// column asked: integer[] [ms] — when the user asked for it, since 1970 (UTC); empty: never
MATCH (i:Instance {state: 'ready'})-[:OF]->(g:Graph)
MATCH (i)-[:HAS_CLASS]->(c:RankClass)
WITH i, g, count(c) AS classes
RETURN i.id AS id, i.name AS name, i.graph AS graph, g.name AS model, g.recipe AS recipe, i.plan AS plan,
  i.world AS ranks, classes, i.created AS created, i.builder AS builder, i.claim AS claim,
  [(n:Name)-[:NAMES]->(i) | n.space + '/' + n.name] AS names, [(t:Tag)-[:TAGS]->(i) | t.id] AS tags,
  [(m:Note)-[:ABOUT]->(i) | m.text] AS notes, [(:User {id: $user})-[a:ASKED_FOR]->(i) | a.time] AS asked
ORDER BY created DESC, id
