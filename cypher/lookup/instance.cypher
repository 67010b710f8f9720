// The complete instances that a word may mean, each with its graph: by the start of their ids, by anybody's name, and
// by what they are called without one.
//
// mode: reads
// param word: string — the word
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
// column graph_options: string — its graph's options, as JSON
// column graph_sizes: string — the model's symbols and their values, as JSON
// column graph_created: integer [ms] — when its graph was made, since 1970 (UTC)
// column graph_builder: string? — the process that made its graph
// column graph_tags: string[] — tags of its graph
// column graph_notes: string[] — texts of the notes about its graph
// column graph_loaded: string[] — which of these came with a dump, and from where
MATCH (a:Instance)
WHERE size($word) >= 4 AND a.id STARTS WITH $word
WITH collect(a) AS begun
OPTIONAL MATCH (b:Instance {name: $word})
WITH begun, collect(b) AS called
OPTIONAL MATCH (:Name {name: $word})-[:NAMES]->(c:Instance)
WITH begun, called, collect(c) AS named
OPTIONAL MATCH (:Name {id: 'instance:' + $word})-[:NAMES]->(d:Instance)
WITH begun, called, named, collect(d) AS meant
UNWIND begun + called + named + meant AS i
WITH DISTINCT i
MATCH (i)-[:OF]->(g:Graph)
WHERE i.state = 'ready'
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
OPTIONAL MATCH (x:Tag)-[q:TAGS]->(g)
WITH i, g, classes, names, loaded_names, tags, loaded_tags, notes, loaded_notes, asked, collect(x.id) AS graph_tags,
  collect('tag ' + x.id + ' ' + q.origin) AS graph_loaded_tags
OPTIONAL MATCH (y:Note)-[:ABOUT]->(g)
WITH i, g, classes, names, loaded_names, tags, loaded_tags, notes, loaded_notes, asked, graph_tags, graph_loaded_tags,
  collect(y.text) AS graph_notes,
  collect('note ' + substring(y.text, 0, 40) + ' ' + y.origin) AS graph_loaded_notes
RETURN i.id AS id, i.name AS name, i.graph AS graph, g.name AS model, g.recipe AS recipe, i.plan AS plan,
  i.world AS ranks, classes, i.created AS created, i.builder AS builder, i.claim AS claim, names, tags, notes, asked,
  loaded_names + loaded_tags + loaded_notes AS loaded,
  g.options AS graph_options, g.sizes AS graph_sizes, g.created AS graph_created, g.builder AS graph_builder,
  graph_tags, graph_notes, graph_loaded_tags + graph_loaded_notes AS graph_loaded
ORDER BY created DESC, id
