// The LaneTime nodes of one profile.
//
// mode: reads
// param id: string — the profile's id
// column also: string[] — all labels of the node
// column parent: string? — the id of the node that it belongs to
// column values: map — its properties
MATCH (p:Profile {id: $id})-[:HAS_LANE]->(n:LaneTime)
RETURN labels(n) AS also, p.id AS parent, properties(n) AS values
