// Copy a bucket op once for each bucket of a class.
//
// mode: writes
// param graph: string — the graph's id
// param instance: string — the instance's id
// param dtypes: map — the format (`bf16`, …) of each dtype class
// param rows: map[] — a bucket: id, class, chunk, op (the symbolic op's name), index, position, order, bytes_in and bytes_out (sums over its members)
UNWIND $rows AS row
MATCH (s:SymOp {id: $graph + '/' + row.op})
CREATE (:Op:Collective {
  id: row.id, instance: $instance, class: row.class, chunk: row.chunk, template: s.template, position: row.position,
  `order`: row.`order`, name: s.name + '.' + toString(row.index), sym: s.id, block: s.block, type: s.type,
  kind: s.kind, phase: s.phase, `when`: s.`when`, flops: 0, bytes_read: 0, bytes_written: 0, axis: s.axis,
  comm_bytes: row.bytes_in, comm_out_bytes: row.bytes_out, dtype: $dtypes[s.dtype]
})
