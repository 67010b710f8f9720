// The TaskTime nodes of one profile.
//
// mode: reads
// param id: string — the profile's id
// column also: string[] — all labels of the node
// column parent: string? — the id of the node that it belongs to
// column values: map — its properties
MATCH (:Profile {id: $id})-[:HAS_LANE]->(p:LaneTime)-[:HAS_TASK_TIME]->(n:TaskTime)
RETURN labels(n) AS also, p.id AS parent, properties(n) AS values
