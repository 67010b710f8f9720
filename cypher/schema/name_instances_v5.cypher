// Names of instances that schema 5 kept as properties become nodes, in the space of the user who made the instance.
// Where several have one name, it means the newest.
//
// mode: writes
// param user: string — whose names they are if the maker is not known
// column done: integer — 0: one run does all
MATCH (i:Instance)-[:OF]->(g:Graph)
WHERE i.state IN ['ready', 'outdated'] AND i.name <> g.name
WITH i, split(coalesce(i.builder, ''), ' ') AS words
WITH i, CASE WHEN size(words) = 5 THEN replace(words[4], '/', '_') ELSE $user END AS space
ORDER BY i.created DESC, i.id
WITH space, i.name AS name, collect(i) AS named
WITH space, name, named[0] AS i
MERGE (n:Name {id: 'instance:' + space + '/' + name})
ON CREATE SET n.kind = 'instance', n.space = space, n.name = name, n.user = space, n.time = i.created
WITH n, i
OPTIONAL MATCH (n)-[:NAMES]->(o:Instance)
WITH n, i, count(o) AS there
FOREACH (x IN CASE WHEN there = 0 THEN [1] ELSE [] END | CREATE (n)-[:NAMES]->(i))
RETURN 0 AS done
