// The tensors that a rank holds when it holds the most memory, layers taken together. `stagedb memory` computes it.
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
MATCH (:Instance {id: $instance})-[:HAS_CLASS]->(c:RankClass)-[:HAS_MEMORY]->(:Memory)-[:HOLDS]->(n:MemoryTensor)
WITH c, n.name AS tensor, n.category AS category, count(n) AS layers, sum(n.count) AS count, sum(n.bytes) AS bytes
RETURN c.class AS class, c.stages AS stages, tensor, category, layers, count, bytes
ORDER BY class, bytes DESC, tensor
