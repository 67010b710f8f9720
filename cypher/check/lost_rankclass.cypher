// The RankClass nodes that belong to nothing: a relationship of theirs is missing. What is unfinished is left out.
//
// mode: reads
// column id: string — its id
MATCH (n:RankClass)
OPTIONAL MATCH (n)<-[:HAS_CLASS]-(p:Instance)
WITH n, p
WHERE p IS NULL
RETURN n.id AS id
ORDER BY id
