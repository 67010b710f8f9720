// The memory of rank classes: peaks, bytes by category at the moments of a step, and the tensors that are held at the
// peak. A class that already has its memory does not change. The SET takes the class's lock, so that the second of two
// simultaneous writers finds the result of the first one. An engine without such locks fails at the MERGE, which is then
// run again.
//
// mode: writes
// param instance: string — the instance's id
// param rows: map[] — a class: class, task (id), op (id; null at a task's end), values (properties of its peak), levels (moment, category, bytes), tensors (place, sym: id of its tensor in the graph or null, name, layer, category, count, bytes)
UNWIND $rows AS row
MATCH (:Instance {id: $instance, state: 'ready'})-[:HAS_CLASS]->(c:RankClass {class: row.class})
SET c.tasks = c.tasks
WITH row, c
OPTIONAL MATCH (c)-[:HAS_MEMORY]->(there:Memory)
WITH row, c, there
WHERE there IS NULL
MATCH (k:Task {id: row.task})
MERGE (m:Memory {id: c.id})
SET m += row.values
CREATE (c)-[:HAS_MEMORY]->(m)
CREATE (m)-[:PEAKS_IN]->(k)
FOREACH (level IN row.levels |
  CREATE (m)-[:HAS_LEVEL]->(:MemoryLevel {
    id: m.id + '/' + level.moment + '/' + level.category, instance: $instance, class: row.class,
    moment: level.moment, category: level.category, bytes: level.bytes
  }))
WITH row, m
OPTIONAL MATCH (o:Op {id: row.op})
FOREACH (x IN CASE WHEN o IS NULL THEN [] ELSE [1] END | CREATE (m)-[:PEAKS_AT]->(o))
WITH row, m
UNWIND row.tensors AS tensor
// Without `row`: an engine that holds all lines at once would hold its lists once for each line.
WITH m, tensor, row.class AS class
CREATE (m)-[:HOLDS]->(t:MemoryTensor {
  id: m.id + '/' + toString(tensor.place), instance: $instance, class: class, name: tensor.name,
  layer: tensor.layer, category: tensor.category, count: tensor.count, bytes: tensor.bytes
})
WITH t, tensor
WHERE tensor.sym IS NOT NULL
MATCH (s:SymTensor {id: tensor.sym})
CREATE (t)-[:COPY_OF]->(s)
