// The weights of a graph, from which their gradients are dealt to buckets.
//
// mode: reads
// param graph: string — the graph's id
// column name: string — unique in the graph
// column block: string — the block that it is part of
// column order: integer? — order of registration in the block
// column elements: string? — expression of this rank's number of elements
// column shard: string? — expression of the elements of one rank's part, where something is sharded
// column present: string? — the weight exists where this is above 0
// column buckets: string[]? — bucket ops that its gradient passes, in that order
// column grads: string[]? — ops that make its gradient
// column gathers: string[]? — bucket ops that put its parts together
// column readers: string[]? — ops that read it
// column depth: integer? — the layer for further tokens that it is in
// column joined: boolean? — it makes queries, keys and values in one matmul
// column axes: string[] — names of its axes
MATCH (:Graph {id: $graph})-[:HAS_TENSOR]->(t:SymTensor)
WHERE t.role = 'weight'
RETURN t.name AS name, t.block AS block, t.`order` AS `order`, t.elements AS elements, t.shard AS shard,
  t.present AS present, t.buckets AS buckets, t.grads AS grads, t.gathers AS gathers, t.readers AS readers,
  t.depth AS depth, t.joined AS joined, t.axes AS axes
ORDER BY name
