// Names of profiles that schema 5 kept as properties become nodes, in the space of the user who made the profile.
// Where several have one name, it means the newest.
//
// mode: writes
// param user: string — whose names they are if the maker is not known
// column done: integer — 0: one run does all
MATCH (p:Profile)
WHERE p.state IN ['ready', 'outdated'] AND p.name IS NOT NULL
WITH p, split(coalesce(p.builder, ''), ' ') AS words
WITH p, CASE WHEN size(words) = 5 THEN replace(words[4], '/', '_') ELSE $user END AS space
ORDER BY p.created DESC, p.id
WITH space, p.name AS name, collect(p) AS named
WITH space, name, named[0] AS p
MERGE (n:Name {id: 'profile:' + space + '/' + name})
ON CREATE SET n.kind = 'profile', n.space = space, n.name = name, n.user = space, n.time = p.created
WITH n, p
OPTIONAL MATCH (n)-[:NAMES]->(o:Profile)
WITH n, p, count(o) AS there
FOREACH (x IN CASE WHEN there = 0 THEN [1] ELSE [] END | CREATE (n)-[:NAMES]->(p))
RETURN 0 AS done
