// The Group nodes that belong to nothing: a relationship of theirs is missing. What is unfinished is left out.
//
// mode: reads
// column id: string — its id
MATCH (n:Group)
OPTIONAL MATCH (n)<-[:HAS_GROUP]-(p:Instance)
WITH n, p
WHERE p IS NULL
RETURN n.id AS id
ORDER BY id
