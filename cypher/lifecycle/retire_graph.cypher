// Make a graph invisible and begin to delete it. No row if a living process has it, or complete instances need it.
//
// mode: writes
// param id: string — the graph's id
// param owner: string — who deletes it
// param lease: integer [ms] — for how long, from now
// param dead: string — an owner that is known to have died; empty if none is
// param unnamed: boolean — only if it has no name and no tag
// column id: string — the graph's id
MATCH (n:Graph {id: $id})
SET n.claim = $owner
WITH n
OPTIONAL MATCH (a:Name|Tag)-[:NAMES|TAGS]->(n)
WITH n, count(a) AS named
WHERE NOT ($unnamed AND named > 0)
WITH n
OPTIONAL MATCH (i:Instance)-[:OF]->(n)
WHERE i.state IN ['ready', 'outdated']
WITH n, count(i) AS needed
WHERE n.state <> 'ready' OR needed = 0
WITH n
WHERE n.state = 'ready' OR n.owner = $owner OR n.owner = $dead OR n.lease < timestamp()
SET n.state = 'deleting', n.owner = $owner, n.lease = timestamp() + $lease
RETURN n.id AS id
