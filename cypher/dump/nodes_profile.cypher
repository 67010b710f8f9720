// The Profile nodes of one profile.
//
// mode: reads
// param id: string — the profile's id
// column also: string[] — all labels of the node
// column parent: string? — the id of the node that it belongs to
// column values: map — its properties
MATCH (n:Profile {id: $id})
RETURN labels(n) AS also, null AS parent, properties(n) AS values
