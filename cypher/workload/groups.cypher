// The communicator groups of an instance as columns.
//
// mode: reads
// param instance: string — the instance's id
// column gid: integer[] — ids in the traces
// column axis: string[] — mesh axis of each
// column members: integer[][] — of each its ranks, in ring order
MATCH (:Instance {id: $instance})-[:HAS_GROUP]->(g:Group)
RETURN collect(g.gid) AS gid, collect(g.axis) AS axis, collect(g.ranks) AS members
