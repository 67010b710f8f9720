// The communicator groups of an instance, a row each: their members are a list already.
//
// mode: reads
// param instance: string — the instance's id
// column gid: integer — its id in the traces
// column axis: string — mesh axis
// column members: integer[] — ranks in ring order
MATCH (g:Group {instance: $instance})
RETURN g.gid AS gid, g.axis AS axis, g.ranks AS members
ORDER BY gid
