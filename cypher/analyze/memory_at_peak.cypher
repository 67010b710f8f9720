// The tensors that live where a rank holds the most memory, layers taken together; `stagedb memory` computes it.
//
// mode: reads
// param instance: string — the instance's id
// column class: integer — the rank class
// column stages: integer[] — its pipeline stages
// column tensor: string — the tensor's name in the graph
// column category: string — what it is held for
// column layers: integer — layers that hold some
// column count: integer — how many live
// column bytes: integer [bytes] — of all of them together
MATCH (n:MemoryTensor {instance: $instance})
WITH n.class AS class, n.name AS tensor, n.category AS category, count(n) AS layers, sum(n.count) AS count,
  sum(n.bytes) AS bytes
MATCH (c:RankClass {instance: $instance, class: class})
RETURN class, c.stages AS stages, tensor, category, layers, count, bytes
ORDER BY class, bytes DESC, tensor
