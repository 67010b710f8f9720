// The weights of a graph, for dealing their gradients to buckets.
//
// mode: reads
// param graph: string — the graph's id
// column name: string — unique in the graph
// column block: string — the block that it is part of
// column order: integer? — order of registration in the block
// column grad_bytes: string? — expression of its gradient's bytes
// column present: string? — the weight exists where this is above 0
// column buckets: string[]? — bucket ops that its gradient passes, in that order
// column grads: string[]? — ops that make its gradient
MATCH (t:SymTensor {graph: $graph})
WHERE t.role = 'weight'
RETURN t.name AS name, t.block AS block, t.`order` AS `order`, t.grad_bytes AS grad_bytes, t.present AS present,
  t.buckets AS buckets, t.grads AS grads
ORDER BY name
