// The rank classes.
//
// mode: writes
// param instance: string — the instance's id
// param rows: map[] — a class: class, digest, stages, first_layers, layers, ranks, tasks
UNWIND $rows AS row
CREATE (:RankClass {
  id: $instance + '/' + toString(row.class), instance: $instance, class: row.class, digest: row.digest,
  stages: row.stages, first_layers: row.first_layers, layers: row.layers, ranks: row.ranks, tasks: row.tasks
})
