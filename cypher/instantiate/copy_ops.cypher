// Copy the ops of every block to every place of the block, for all types of ops. A place is a block at a position of a
// class (stagedb/lowering/copied_rows.py draws it). It has: class, chunk, block, position, layer (null outside layers),
// variant (the index of its values), here and mark (how the ids of its ops begin and end), peer (stages to the other
// end of the messages of a cut), copies (by name of each copied symbolic op its order, index and runs).
// The look-ups by block and by id are indexed. Nodes are made by CREATE: an interrupted instance is cleared first, and
// MERGE of two labels is ten times as slow on one of the engines. A label cannot be a parameter.
//
// mode: writes
// param graph: string — the graph's id
// param instance: string — the instance's id
// param values: map[] — for each variant, the value of every expression that a present op holds
// param dtypes: map — the format (`bf16`, …) of each dtype class
// param ragged: string[] — matmuls of experts with uneven loads: each part has sizes of its own
// param rows: map[] — places of blocks
UNWIND $rows AS row
MATCH (c:RankClass {id: $instance + '/' + toString(row.class)})
MATCH (s:SymOp {graph: $graph, block: row.block})
WITH c, row, s, row.copies[s.name] AS copy, $values[row.variant] AS v
WHERE copy IS NOT NULL
WITH c, s, {
  id: row.here + s.name + row.mark, instance: $instance, class: row.class, index: copy.index, runs: copy.runs,
  chunk: row.chunk, template: s.template, position: row.position, `order`: copy.`order`,
  name: CASE
    WHEN row.layer IS NULL THEN s.name
    WHEN s.name STARTS WITH row.block + '.'
      THEN row.block + '.' + toString(row.layer) + substring(s.name, size(row.block))
    ELSE row.block + '.' + toString(row.layer) + '.' + s.name
  END + row.mark,
  sym: s.id, block: s.block, layer: row.layer, type: s.type, kind: s.kind, phase: s.phase, `when`: s.`when`,
  flops: v[s.flops], bytes_read: v[s.bytes_read], bytes_written: v[s.bytes_written], temporary: v[s.temporary],
  dims: CASE WHEN s.type = 'compute' AND NOT s.name IN $ragged THEN [d IN s.dims | v[d]] END,
  fullest: CASE WHEN s.name IN $ragged THEN [d IN s.dims | v[d]] END,
  axis: s.axis,
  comm_bytes: CASE WHEN s.comm_bytes IS NOT NULL THEN v[s.comm_bytes] END,
  comm_out_bytes: CASE WHEN s.comm_out_bytes IS NOT NULL THEN v[s.comm_out_bytes] END,
  dtype: CASE WHEN s.dtype IS NOT NULL THEN $dtypes[s.dtype] END,
  peer: CASE WHEN s.type IN ['send', 'recv'] THEN coalesce(row.peer, v[s.peer]) END
} AS op
FOREACH (x IN CASE WHEN s.type = 'compute' THEN [1] ELSE [] END |
  CREATE (c)-[:RUNS]->(o:Op:Compute {id: op.id})-[:COPY_OF]->(s) SET o += op)
FOREACH (x IN CASE WHEN s.type = 'collective' THEN [1] ELSE [] END |
  CREATE (c)-[:RUNS]->(o:Op:Collective {id: op.id})-[:COPY_OF]->(s) SET o += op)
FOREACH (x IN CASE WHEN s.type = 'send' THEN [1] ELSE [] END |
  CREATE (c)-[:RUNS]->(o:Op:Send {id: op.id})-[:COPY_OF]->(s) SET o += op)
FOREACH (x IN CASE WHEN s.type = 'recv' THEN [1] ELSE [] END |
  CREATE (c)-[:RUNS]->(o:Op:Recv {id: op.id})-[:COPY_OF]->(s) SET o += op)
