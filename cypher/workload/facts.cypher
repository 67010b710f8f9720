// What the symbolic ops of an instance's graph are to their model, as columns.
//
// mode: reads
// param instance: string — id of the instance
// column graph: string — id of the graph
// column format: integer — version of the graph's stored form
// column name: string[] — names of the symbolic ops
// column origin: string[] — the forward operator that each differentiates, else empty
// column part: string[] — the part of a layer: attn, ffn or empty
// column module: string[] — the module of a layer whose call it is in, else empty
// column depth: integer[] — the layer for further tokens, else 0
// column experts: string[] — the place in the module of a layer's experts, else empty
// column casts: string[] — the operand of a matmul that it casts, else empty
// column ring: string[] — the operator whose turns around a ring it computes, or whose keys it sends, else empty
// column packed: string[] — the format in which the weight of each matmul is stored in 4 bits, else empty
MATCH (:Instance {id: $instance})-[:OF]->(g:Graph)-[:HAS_OP]->(s:SymOp)
RETURN g.id AS graph, g.format AS format, collect(s.name) AS name, collect(coalesce(s.origin, '')) AS origin,
  collect(coalesce(s.part, '')) AS part, collect(coalesce(s.module, '')) AS module,
  collect(coalesce(s.depth, 0)) AS depth, collect(coalesce(s.experts, '')) AS experts,
  collect(coalesce(s.casts, '')) AS casts, collect(coalesce(s.ring, '')) AS ring,
  collect(coalesce(s.packed, '')) AS packed
