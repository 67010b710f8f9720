// The Instance nodes of one instance.
//
// mode: reads
// param id: string — the instance's id
// column also: string[] — all labels of the node
// column parent: string? — the id of the node that it belongs to
// column values: map — its properties
MATCH (n:Instance {id: $id})
RETURN labels(n) AS also, null AS parent, properties(n) AS values
