// The tasks of a rank class as columns.
//
// mode: reads
// param instance: string — the instance's id
// param class: integer — the rank class
// column index: integer[] — place in the class's schedule
// column kind: string[] — forward, backward, input_gradient, weight_gradient or step
// column microbatch: integer[] — which one, 0 for the step
// column chunk: integer[] — virtual stage
// column first: boolean[] — whether it is the first of its kind
// column last: boolean[] — whether it is the last of its kind
MATCH (t:Task {instance: $instance, class: $class})
USING INDEX SEEK t:Task(instance, class)
RETURN collect(t.index) AS index, collect(t.kind) AS kind, collect(coalesce(t.microbatch, 0)) AS microbatch,
  collect(t.chunk) AS chunk, collect(t.first) AS first, collect(t.last) AS last
