// Bytes by category at the moments of a step. They may be written again: the same content has the same ids.
//
// mode: writes
// param instance: string — the instance's id
// param rows: map[] — class, moment, category, bytes
UNWIND $rows AS row
MATCH (:Instance {id: $instance, state: 'ready'})
MERGE (n:MemoryLevel {id: $instance + '/' + toString(row.class) + '/' + row.moment + '/' + row.category})
SET n.instance = $instance, n.class = row.class, n.moment = row.moment, n.category = row.category, n.bytes = row.bytes
