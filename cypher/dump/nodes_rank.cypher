// The Rank nodes of one instance.
//
// mode: reads
// param id: string — the instance's id
// column also: string[] — all labels of the node
// column parent: string? — the id of the node that it belongs to
// column values: map — its properties
MATCH (n:Rank {instance: $id})
WHERE n.`rank` >= 0
RETURN labels(n) AS also, n.instance AS parent, properties(n) AS values
