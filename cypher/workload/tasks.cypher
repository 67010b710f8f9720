// The tasks of a rank class as columns.
//
// mode: reads
// param class: string — id of the rank class
// column index: integer[] — place in the class's schedule
// column id: string[] — their ids
// column kind: string[] — forward, backward, input_gradient, weight_gradient or step
// column microbatch: integer[] — which one, 0 for the step
// column chunk: integer[] — virtual stage
// column first: boolean[] — whether it is the first of its kind
// column last: boolean[] — whether it is the last of its kind
MATCH (:RankClass {id: $class})-[:SCHEDULES]->(t:Task)
RETURN collect(t.index) AS index, collect(t.id) AS id, collect(t.kind) AS kind,
  collect(coalesce(t.microbatch, 0)) AS microbatch, collect(t.chunk) AS chunk, collect(t.first) AS first,
  collect(t.last) AS last
