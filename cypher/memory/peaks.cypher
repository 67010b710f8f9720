// The peak of each rank class; written last, so that whoever finds it finds the rest.
//
// mode: writes
// param instance: string — the instance's id
// param rows: map[] — class, peak, phase, task, microbatch (null of the step), op (null at a task's end), name
UNWIND $rows AS row
MATCH (:Instance {id: $instance, state: 'ready'})
MERGE (n:Memory {id: $instance + '/' + toString(row.class)})
SET n.instance = $instance, n.class = row.class, n.peak = row.peak, n.phase = row.phase, n.task = row.task,
  n.microbatch = row.microbatch, n.op = row.op, n.name = row.name
