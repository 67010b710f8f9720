// The tensors that live at the peak of a rank class.
//
// mode: writes
// param instance: string — the instance's id
// param rows: map[] — class, place, name, layer (null outside layers), category, count, bytes
UNWIND $rows AS row
MATCH (:Instance {id: $instance, state: 'ready'})
MERGE (n:MemoryTensor {id: $instance + '/' + toString(row.class) + '/' + toString(row.place)})
SET n.instance = $instance, n.class = row.class, n.name = row.name, n.layer = row.layer, n.category = row.category,
  n.count = row.count, n.bytes = row.bytes
