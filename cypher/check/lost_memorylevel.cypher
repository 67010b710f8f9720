// The MemoryLevel nodes that belong to nothing: a relationship of theirs is missing. What is unfinished is left out.
//
// mode: reads
// column id: string — its id
MATCH (n:MemoryLevel)
OPTIONAL MATCH (n)<-[:HAS_LEVEL]-(p:Memory)
WITH n, p
WHERE p IS NULL
RETURN n.id AS id
ORDER BY id
