// Every symbolic op of a graph with its expressions: a few hundred, for every depth of the model.
//
// mode: reads
// param graph: string — the graph's id
// column name: string — unique in the graph
// column block: string — the block that it is part of
// column template: string — which kind of task runs it
// column phase: string — forward, backward, recompute, …
// column type: string — compute, collective, send, recv
// column kind: string — matmul, all_gather, …
// column when: string — for which micro-batches it runs
// column order: integer — issue order inside block and template
// column axis: string? — of a collective or message
// column flops: string? — an expression
// column bytes_read: string? — an expression
// column bytes_written: string? — an expression
// column temporary: string? — an expression
// column comm_bytes: string? — an expression
// column comm_out_bytes: string? — an expression
// column dims: string[]? — expressions
// column peer: string? — ranks of cp from a message inside a block to its other end, an expression
// column present: string? — the op exists where this is above 0
// column times: string? — how often it is unrolled
// column loop: integer? — order of the first op of its loop
// column bucket: string? — bucketing rule
// column depth: integer? — the layer for further tokens that it is in
// column experts: string? — its place in the module of a layer's experts
// column packed: string? — the format in which the weight of a matmul is stored in 4 bits
MATCH (:Graph {id: $graph})-[:HAS_OP]->(s:SymOp)
RETURN s.name AS name, s.block AS block, s.template AS template, s.phase AS phase, s.type AS type, s.kind AS kind,
  s.`when` AS `when`, s.`order` AS `order`, s.axis AS axis, s.flops AS flops, s.bytes_read AS bytes_read,
  s.bytes_written AS bytes_written, s.temporary AS temporary, s.comm_bytes AS comm_bytes,
  s.comm_out_bytes AS comm_out_bytes, s.dims AS dims, s.peer AS peer, s.present AS present, s.times AS times,
  s.loop AS loop, s.bucket AS bucket, s.depth AS depth, s.experts AS experts,
  s.packed AS packed
ORDER BY name
