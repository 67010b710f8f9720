// The instances that are not there, and of which there are ranks.
//
// mode: reads
// column id: string — the id of the instance
MATCH (n:Rank)
WITH DISTINCT n.instance AS id
OPTIONAL MATCH (p:Instance {id: id})
WITH id, p
WHERE p IS NULL
RETURN id
ORDER BY id
