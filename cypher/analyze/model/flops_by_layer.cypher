// Floating-point operations of one step, all ranks together: by pipeline stage, block and layer.
//
// mode: reads
// param instance: string — id of the instance
// column stage: integer — pipeline stage
// column block: string — embedding, layer or head
// column layer: integer? — number of the layer in the model; null outside layers
// column forward_flops: integer [flop] — FLOPs of the forward
// column backward_flops: integer [flop] — FLOPs of both gradients, and of all other work outside the forward
// column flops: integer [flop] — FLOPs of both together
MATCH (:Instance {id: $instance})-[:HAS_CLASS]->(c:RankClass)-[:RUNS]->(o:Op)
WHERE o.flops > 0
WITH c, o.chunk AS chunk, o.block AS block, o.layer AS local,
  sum(CASE WHEN o.phase = 'forward' THEN o.runs * o.flops ELSE 0 END) AS forward,
  sum(CASE WHEN o.phase = 'forward' THEN 0 ELSE o.runs * o.flops END) AS backward
// A class may have several stages. The numbers of its layers in the model differ by stage and chunk.
UNWIND range(0, size(c.stages) - 1) AS at
WITH c.stages[at] AS stage, block,
  c.first_layers[at * size(c.first_layers) / size(c.stages) + chunk] + local AS layer,
  c.ranks / size(c.stages) * forward AS forward, c.ranks / size(c.stages) * backward AS backward
RETURN stage, block, layer, sum(forward) AS forward_flops, sum(backward) AS backward_flops,
  sum(forward + backward) AS flops
ORDER BY stage, CASE block WHEN 'embedding' THEN 0 WHEN 'head' THEN 2 ELSE 1 END, layer
