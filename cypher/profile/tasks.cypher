// The tasks of a rank class as columns, in which each task has the same place.
//
// mode: reads
// param instance: string — the instance's id
// param class: integer — the rank class
// column id: string[] — ids of the tasks
// column index: integer[] — places in the class's schedule
MATCH (t:Task {instance: $instance, class: $class})
USING INDEX SEEK t:Task(instance, class)
RETURN collect(t.id) AS id, collect(t.index) AS index
