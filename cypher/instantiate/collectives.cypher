// Copy the collectives of every block to every position where it stands; bucket collectives are made by `buckets`.
// Those of the cuts gather what was received: they stand where the receives do.
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
WHERE s.type = 'collective' AND (s.present IS NULL OR v[s.present] > 0)
  AND (row.end IS NULL OR (s.template = 'forward') = (row.end = 'previous'))
  AND ((s.times IS NULL AND row.step IS NULL) OR (s.times IS NOT NULL AND row.step IS NOT NULL))
CREATE (:Op:Collective {
  id: row.here + s.name + row.mark, instance: $instance, class: row.class, chunk: row.chunk, template: s.template,
  position: row.position,
  `order`: CASE WHEN s.template IN ['forward', 'step'] THEN row.upward ELSE row.downward END
    + coalesce(s.loop, s.`order`) * row.slots + row.offset + s.`order` - coalesce(s.loop, s.`order`),
  name: CASE
    WHEN row.layer IS NULL THEN s.name
    WHEN s.name STARTS WITH row.block + '.'
      THEN row.block + '.' + toString(row.layer) + substring(s.name, size(row.block))
    ELSE row.block + '.' + toString(row.layer) + '.' + s.name
  END + row.mark,
  sym: s.id, block: row.block, layer: row.layer, type: s.type, kind: s.kind, phase: s.phase, `when`: s.`when`,
  flops: v[s.flops], bytes_read: v[s.bytes_read], bytes_written: v[s.bytes_written],
  axis: s.axis, comm_bytes: v[s.comm_bytes], comm_out_bytes: v[s.comm_out_bytes], dtype: $dtypes[s.dtype]
})
