// The tasks of the classes.
//
// mode: writes
// param instance: string — the instance's id
// param rows: map[] — a task: id, class, index, kind, microbatch, chunk, first, last
UNWIND $rows AS row
MATCH (c:RankClass {id: $instance + '/' + toString(row.class)})
CREATE (c)-[:SCHEDULES]->(:Task {
  id: row.id, instance: $instance, class: row.class, index: row.index, kind: row.kind, microbatch: row.microbatch,
  chunk: row.chunk, first: row.first, last: row.last
})
