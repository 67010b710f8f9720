// Write the next communicator groups of an instance by arithmetic, with their ranks in ring order. The first SET takes
// the lock of the instance. No node if it is not complete, or if another process has written these meanwhile.
//
// mode: writes
// param instance: string — the instance's id
// param owner: string — who writes
// param first: integer — the number of groups that are written
// param count: integer — how many are written now
// param rows: map[] — a range of groups of an axis: axis, first (id of its group 0), first_index, last_index, stride, span, members, step
// column written: integer — groups that were written
MATCH (i:Instance {id: $instance})
SET i.claim = $owner
WITH i
WHERE i.state = 'ready' AND i.groups_written = $first
SET i.groups_written = $first + $count
WITH i
UNWIND $rows AS row
UNWIND range(row.first_index, row.last_index) AS g
WITH i, row, row.first + g AS gid, g / row.stride * row.span + g % row.stride AS start
CREATE (i)-[:HAS_GROUP]->(:Group {
  id: $instance + '/' + toString(gid), instance: $instance, gid: gid, axis: row.axis,
  ranks: [k IN range(0, row.members - 1) | start + k * row.step]
})
RETURN count(*) AS written
