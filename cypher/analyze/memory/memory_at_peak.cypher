// The tensors that a rank holds at its peak of memory, all layers together. `stagedb memory` computes it.
//
// mode: reads
// param instance: string — the instance's id
// column class: integer — the rank class
// column stages: integer[] — its pipeline stages
// column tensor: string — the tensor's name in the graph
// column category: string — parameters, gradients, optimizer_state, activations …
// column layers: integer — layers that hold such tensors
// column count: integer — number of tensors held
// column bytes: integer [B] — bytes of all of them together
// keep: class, tensor, bytes, category, count, layers
MATCH (:Instance {id: $instance})-[:HAS_CLASS]->(c:RankClass)-[:HAS_MEMORY]->(:Memory)-[:HOLDS]->(n:MemoryTensor)
WITH c, n.name AS tensor, n.category AS category, count(n) AS layers, sum(n.count) AS count, sum(n.bytes) AS bytes
RETURN c.class AS class, c.stages AS stages, tensor, category, layers, count, bytes
ORDER BY class, bytes DESC, tensor
