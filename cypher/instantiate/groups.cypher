// Communicator groups by arithmetic, with their ranks in ring order.
//
// mode: writes
// param instance: string — the instance's id
// param rows: map[] — a range of groups of an axis: axis, first (id of its group 0), first_index, last_index, stride, span, members, step
MATCH (i:Instance {id: $instance})
UNWIND $rows AS row
UNWIND range(row.first_index, row.last_index) AS g
WITH i, row, row.first + g AS gid, g / row.stride * row.span + g % row.stride AS start
CREATE (i)-[:HAS_GROUP]->(:Group {
  id: $instance + '/' + toString(gid), instance: $instance, gid: gid, axis: row.axis,
  ranks: [k IN range(0, row.members - 1) | start + k * row.step]
})
