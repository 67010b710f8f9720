// The collective that reduces the gradient of each weight, and its axis. A gradient to which ranks of several axes add
// passes several collectives. A gradient that only one rank has is in no row.
//
// mode: reads
// param instance: string — id of the instance
// column weight: string — the weight in the graph
// column stage: integer — pipeline stage of the weight
// column layer: integer? — number of the layer in the model; null outside layers
// column operator: string — the collective
// column kind: string — all_reduce or reduce_scatter
// column axis: string — mesh axis of the group: dp, tp …
// column place: integer — place of the gradient in the collective's bucket, from 0
// column bytes: integer [B] — one rank's operand of the collective, all its gradients together
// column runs: integer — runs of the collective on a rank in a step
// column class: integer — rank class that issues it
// keep: weight, axis, bytes, kind, place
MATCH (:Instance {id: $instance})-[:HAS_CLASS]->(c:RankClass)-[:RUNS]->(o:Op)-[r:CARRIES]->(w:SymTensor)
WHERE o.kind <> 'all_gather'
// A class may have several stages. The numbers of its layers in the model differ by stage and chunk.
UNWIND range(0, size(c.stages) - 1) AS at
RETURN w.name AS weight, c.stages[at] AS stage,
  c.first_layers[at * size(c.first_layers) / size(c.stages) + o.chunk] + r.layer AS layer, o.name AS operator,
  o.kind AS kind, o.axis AS axis, r.number AS place, o.comm_bytes AS bytes, o.runs AS runs, c.class AS class
ORDER BY stage, layer, weight, axis, operator, class
