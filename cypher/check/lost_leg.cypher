// The Leg nodes that belong to nothing: a relationship of theirs is missing. What is unfinished is left out.
//
// mode: reads
// column id: string — its id
MATCH (n:Leg)
OPTIONAL MATCH (n)<-[:HAS_LEG]-(p:Profile)
WITH n, p
WHERE p IS NULL
RETURN n.id AS id
ORDER BY id
