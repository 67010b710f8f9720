// The weights that each bucket of a rank class carries, in the bucket's order.
//
// mode: reads
// param class: string — id of the rank class
// column op: integer — the bucket's place among the ops of the class
// column weight: string[] — names of the weights
// column position: integer[] — positions of their blocks in their chunks
// column chunk: integer[] — these chunks
MATCH (:RankClass {id: $class})-[:RUNS]->(o:Op)-[c:CARRIES]->(t:SymTensor)
WHERE o.block = 'bucket'
WITH o.index AS op, c.number AS number, c.position AS place, coalesce(c.chunk, o.chunk) AS chunk, t.name AS name
ORDER BY op, number
RETURN op, collect(name) AS weight, collect(place) AS position, collect(chunk) AS chunk
