// The rank classes.
//
// mode: writes
// param instance: string — the instance's id
// param rows: map[] — a class: class, digest, stages, first_layers, layers, cp, ep, dp, ranks, ops, tasks
MATCH (i:Instance {id: $instance})
UNWIND $rows AS row
CREATE (i)-[:HAS_CLASS]->(:RankClass {
  id: $instance + '/' + toString(row.class), instance: $instance, class: row.class, digest: row.digest,
  stages: row.stages, first_layers: row.first_layers, layers: row.layers, cp: row.cp, ep: row.ep, dp: row.dp,
  ranks: row.ranks, ops: row.ops, tasks: row.tasks
})
