// The ops of a rank class as columns: one row of parallel lists. Many small rows would be several times as slow to send
// and to read.
//
// mode: reads
// param class: string — id of the rank class
// column index: integer[] — places of the ops in the class
// column id: string[] — their ids
// column sym: string[] — ids of the symbolic ops
// column name: string[] — names
// column block: string[] — blocks of the symbolic ops
// column position: integer[] — positions of these blocks on the stage
// column layer: integer[] — layers, counted over the chunks of the stage; -1 outside layers
// column chunk: integer[] — virtual stage of each
// column template: string[] — forward, input_gradient, weight_gradient or step
// column order: integer[] — issue order inside the task
// column type: string[] — compute, collective, send or recv
// column when: string[] — every, first, last or closed: for which micro-batches it runs
// column kind: string[] — matmul, all_gather, …
// column phase: string[] — forward, backward, optimizer
// column axis: string[] — mesh axis of a message, empty for a compute op
// column dtype: string[] — format of the elements on the wire, or of what FLOPs are computed on; empty for the rest
// column flops: integer[] [flop] — of one run on one rank
// column bytes: integer[] [bytes] — read and written
// column dims: integer[][] — sizes of a matmul (of unevenly loaded experts: the fullest's) or an attention; else empty
// column temporary: integer[] [bytes] — what it allocates only while it runs
// column size: integer[] [bytes] — this rank's operand of a message, 0 for a compute op
// column result: integer[] [bytes] — what a collective or a message leaves on this rank
// column peer: integer[] — stages from here to the other end of a message, 0 for others
MATCH (:RankClass {id: $class})-[:RUNS]->(o:Op)
RETURN collect(o.index) AS index, collect(o.id) AS id, collect(o.sym) AS sym, collect(o.name) AS name,
  collect(o.block) AS block, collect(o.position) AS position, collect(coalesce(o.layer, -1)) AS layer,
  collect(o.chunk) AS chunk, collect(o.template) AS template, collect(o.`order`) AS `order`, collect(o.type) AS type,
  collect(o.`when`) AS `when`, collect(o.kind) AS kind, collect(o.phase) AS phase,
  collect(coalesce(o.axis, '')) AS axis, collect(coalesce(o.dtype, '')) AS dtype, collect(o.flops) AS flops,
  collect(o.bytes_read + o.bytes_written) AS bytes, collect(coalesce(o.dims, o.fullest, [])) AS dims,
  collect(o.temporary) AS temporary,
  collect(coalesce(o.comm_bytes, 0)) AS size, collect(coalesce(o.comm_out_bytes, 0)) AS result,
  collect(coalesce(o.peer, 0)) AS peer
