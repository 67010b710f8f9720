// All complete instances of a graph, the newest first.
//
// mode: reads
// param graph: string — the graph's id
// param user: string — the user who asks
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
// column notes: string[] — texts of the notes about it
// column asked: integer? [ms] — when the user asked for it, since 1970 (UTC)
// column loaded: string[] — which names, tags and notes came with a dump, and from where
MATCH (g:Graph {id: $graph})<-[:OF]-(i:Instance {state: 'ready'})
MATCH (i)-[:HAS_CLASS]->(k:RankClass)
WITH i, g, count(k) AS classes
OPTIONAL MATCH (n:Name)-[:NAMES]->(i)
WITH i, g, classes, collect(n.space + '/' + n.name) AS names,
  collect('name ' + n.space + '/' + n.name + ' ' + n.origin) AS loaded_names
OPTIONAL MATCH (t:Tag)-[r:TAGS]->(i)
WITH i, g, classes, names, loaded_names, collect(t.id) AS tags,
  collect('tag ' + t.id + ' ' + r.origin) AS loaded_tags
OPTIONAL MATCH (m:Note)-[:ABOUT]->(i)
WITH i, g, classes, names, loaded_names, tags, loaded_tags, collect(m.text) AS notes,
  collect('note ' + substring(m.text, 0, 40) + ' ' + m.origin) AS loaded_notes
OPTIONAL MATCH (:User {id: $user})-[s:ASKED_FOR]->(i)
WITH i, g, classes, names, loaded_names, tags, loaded_tags, notes, loaded_notes, max(s.time) AS asked
RETURN i.id AS id, i.name AS name, i.graph AS graph, g.name AS model, g.recipe AS recipe, i.plan AS plan,
  i.world AS ranks, classes, i.created AS created, i.builder AS builder, i.claim AS claim, names, tags, notes, asked,
  loaded_names + loaded_tags + loaded_notes AS loaded
ORDER BY created DESC, id
