// The Memory nodes of one instance.
//
// mode: reads
// param id: string — the instance's id
// column also: string[] — all labels of the node
// column parent: string? — the id of the node that it belongs to
// column values: map — its properties
MATCH (:Instance {id: $id})-[:HAS_CLASS]->(p:RankClass)-[:HAS_MEMORY]->(n:Memory)
RETURN labels(n) AS also, p.id AS parent, properties(n) AS values
