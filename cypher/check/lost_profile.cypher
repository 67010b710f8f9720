// The Profile nodes that belong to nothing: a relationship of theirs is missing. What is unfinished is left out.
//
// mode: reads
// column id: string — its id
MATCH (n:Profile)
OPTIONAL MATCH (n)-[:OF]->(p:Instance)
WITH n, p
WHERE p IS NULL AND n.state = 'ready'
RETURN n.id AS id
ORDER BY id
