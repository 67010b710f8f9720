// Copy the receives of the cuts. At the end towards the previous stage stand a forward's, at the other a backward's.
//
// mode: writes
// param graph: string — the graph's id
// param instance: string — the instance's id
// param values: map[] — for each variant, the value of every expression that a present op or edge holds
// param dtypes: map — the format (`bf16`, …) of each dtype class
// param rows: map[] — places of blocks, as in `compute`
UNWIND $rows AS row
MATCH (s:SymOp {graph: $graph, block: row.block})
WITH row, s, $values[row.variant] AS v
WHERE s.type = 'recv' AND (s.present IS NULL OR v[s.present] > 0)
  AND (s.template = 'forward') = (row.end = 'previous')
CREATE (:Op:Recv {
  id: row.here + s.name, instance: $instance, class: row.class, chunk: row.chunk, template: s.template,
  position: row.position,
  `order`: CASE WHEN s.template IN ['forward', 'step'] THEN row.upward ELSE row.downward END + s.`order` * row.slots,
  name: s.name, sym: s.id, block: s.block, type: s.type, kind: s.kind, phase: s.phase, `when`: s.`when`,
  flops: v[s.flops], bytes_read: v[s.bytes_read], bytes_written: v[s.bytes_written],
  axis: s.axis, comm_bytes: v[s.comm_bytes], comm_out_bytes: v[s.comm_out_bytes], dtype: $dtypes[s.dtype],
  peer: row.peer
})
