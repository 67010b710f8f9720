// Copy the kernels of every block to every position where it stands.
// A place is a block at a position of a class: class, chunk, variant, block, position, layer (null outside layers), end
// (`previous` or `next`, of a cut), peer (stages from there to the other end, of a cut), slots, upward and downward (issue numbers at which the position begins), here, before,
// after (how ids of ops at this and the neighbouring positions begin), standing (the same for each block that stands once).
// A place that has loops has a row more for each of their turns: step (from 0; null in the others), mark and before_mark
// (what ends the ids of ops of this turn and of the turn before), offset (of its issue numbers). turns: step and variant
// of each of them.
// The look-ups by block and by id are indexed; nodes are made by CREATE, as an interrupted instance is swept first
// and MERGE of two labels costs one of the engines ten times as much.
//
// mode: writes
// param graph: string — the graph's id
// param instance: string — the instance's id
// param values: map[] — for each variant, the value of every expression that a present op or edge holds
// param dtypes: map — the format (`bf16`, …) of each dtype class
// param ragged: string[] — symbolic ops without sizes: each of their parts has its own
// param rows: map[] — places of blocks
UNWIND $rows AS row
MATCH (s:SymOp {graph: $graph, block: row.block})
WITH row, s, $values[row.variant] AS v
WHERE s.type = 'compute' AND (s.present IS NULL OR v[s.present] > 0)
  AND ((s.times IS NULL AND row.step IS NULL) OR (s.times IS NOT NULL AND row.step IS NOT NULL))
CREATE (:Op:Compute {
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
  dims: CASE WHEN NOT s.name IN $ragged THEN [d IN s.dims | v[d]] END,
  dtype: CASE WHEN s.dtype IS NULL THEN null ELSE $dtypes[s.dtype] END
})
