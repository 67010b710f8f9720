// The matmuls and attentions of a rank with their dimensions, each op of its class once.
//
// mode: reads
// param instance: string — the instance's id
// param class: integer — number of its rank class
// column name: string — the op
// column kind: string — matmul or attention
// column dims: integer[] — `[batch,] m, n, k`, or batch, heads, kv_heads, q_len, kv_len, head_dim; of experts with uneven loads, the fullest's
MATCH (:Instance {id: $instance})-[:HAS_CLASS]->(:RankClass {class: $class})-[:RUNS]->(o:Op)
WHERE o.kind = 'matmul' OR o.kind = 'attention'
RETURN o.name AS name, o.kind AS kind, coalesce(o.dims, o.fullest) AS dims
ORDER BY name
