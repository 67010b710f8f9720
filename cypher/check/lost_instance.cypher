// The Instance nodes that belong to nothing: a relationship of theirs is missing. What is unfinished is left out.
//
// mode: reads
// column id: string — its id
MATCH (n:Instance)
OPTIONAL MATCH (n)-[:OF]->(p:Graph)
WITH n, p
WHERE p IS NULL AND n.state = 'ready'
RETURN n.id AS id
ORDER BY id
