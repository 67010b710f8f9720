// Let the names, tags and notes of one instance mean another one.
//
// mode: writes
// param old: string — the id of the one
// param new: string — the id of the other
MATCH (o:Instance {id: $old})
MATCH (n:Instance {id: $new})
OPTIONAL MATCH (a:Name)-[x:NAMES]->(o)
WITH o, n, collect(a) AS names, collect(x) AS old
FOREACH (a IN names | MERGE (a)-[:NAMES]->(n))
FOREACH (x IN old | DELETE x)
WITH o, n
OPTIONAL MATCH (m:Note)-[x:ABOUT]->(o)
WITH o, n, collect(m) AS notes, collect(x) AS old
FOREACH (m IN notes | MERGE (m)-[:ABOUT]->(n))
FOREACH (x IN old | DELETE x)
WITH o, n
MATCH (t:Tag)-[x:TAGS]->(o)
MERGE (t)-[y:TAGS]->(n)
ON CREATE SET y.user = x.user, y.time = x.time, y.origin = x.origin
DELETE x
