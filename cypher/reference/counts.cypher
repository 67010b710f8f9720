// What one rank computes and sends in a step: the ops of its class, times their runs.
//
// mode: reads
// param instance: string — the instance's id
// param class: integer — number of its rank class
// column phase: string — forward, backward, optimizer
// column type: string — compute, collective, send, recv
// column kind: string — matmul, attention, all_reduce, …
// column axis: string? — mesh axis of a message, null for a compute op
// column dtype: string? — format of the elements on the wire, null for a compute op
// column bytes_in: integer? [bytes] — this rank's operand of one message
// column bytes_out: integer? [bytes] — its result
// column flops: integer — of all these ops together
// column count: integer — how often they run
MATCH (:Instance {id: $instance})-[:HAS_CLASS]->(:RankClass {class: $class})-[:RUNS]->(o:Op)
WHERE o.type <> 'compute' OR o.flops > 0
RETURN o.phase AS phase, o.type AS type, o.kind AS kind, o.axis AS axis, o.dtype AS dtype, o.comm_bytes AS bytes_in,
  o.comm_out_bytes AS bytes_out, sum(o.flops * o.runs) AS flops, sum(o.runs) AS count
ORDER BY phase, type, kind, axis, dtype, bytes_in, bytes_out
