// The Note nodes that belong to nothing: a relationship of theirs is missing. What is unfinished is left out.
//
// mode: reads
// column id: string — its id
MATCH (n:Note)
OPTIONAL MATCH (n)-[:ABOUT]->(p:Graph|Instance|Profile)
WITH n, p
WHERE p IS NULL
RETURN n.id AS id
ORDER BY id
