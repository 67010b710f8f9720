// Floating-point operations of one step, all ranks together: by pipeline stage, block and layer.
//
// mode: reads
// param instance: string — id of the instance
// column stage: integer — pipeline stage
// column block: string — embedding, layer or head
// column layer: integer? — number of the layer in the model; null outside layers
// column forward_flops: integer [flop] — of the forward
// column backward_flops: integer [flop] — of both gradients, and of what else is not the forward
// column flops: integer [flop] — of both
MATCH (c:RankClass {instance: $instance})
MATCH (t:Task {instance: $instance, class: c.class})
WITH c, t.chunk AS chunk,
  sum(CASE WHEN t.kind = 'forward' THEN 1 ELSE 0 END) AS forwards,
  sum(CASE WHEN t.kind IN ['backward', 'input_gradient'] THEN 1 ELSE 0 END) AS input_gradients,
  sum(CASE WHEN t.kind IN ['backward', 'weight_gradient'] THEN 1 ELSE 0 END) AS weight_gradients
MATCH (o:Op {instance: $instance, class: c.class, chunk: chunk})
WHERE o.type = 'compute' AND o.flops > 0
WITH c, chunk, o, o.flops * CASE
    WHEN o.`when` <> 'every' OR o.template = 'step' THEN 1
    WHEN o.template = 'forward' THEN forwards
    WHEN o.template = 'input_gradient' THEN input_gradients
    ELSE weight_gradients
  END AS flops
WITH c, chunk, o.block AS block, o.layer AS local,
  sum(CASE WHEN o.phase = 'forward' THEN flops ELSE 0 END) AS forward,
  sum(CASE WHEN o.phase = 'forward' THEN 0 ELSE flops END) AS backward
// A class stands for several stages: its layers have other numbers on each, and on each of their chunks.
UNWIND range(0, size(c.stages) - 1) AS at
WITH c.stages[at] AS stage, block,
  c.first_layers[at * size(c.first_layers) / size(c.stages) + chunk] + local AS layer,
  c.ranks / size(c.stages) * forward AS forward, c.ranks / size(c.stages) * backward AS backward
RETURN stage, block, layer, sum(forward) AS forward_flops, sum(backward) AS backward_flops,
  sum(forward + backward) AS flops
ORDER BY stage, CASE block WHEN 'embedding' THEN 0 WHEN 'head' THEN 2 ELSE 1 END, layer
