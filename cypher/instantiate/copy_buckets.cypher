// Copy a bucket op once for each bucket of a class, and connect it to the weights that it carries.
//
// mode: writes
// param graph: string — the graph's id
// param instance: string — the instance's id
// param dtypes: map — the format (`bf16`, …) of each dtype class
// param rows: map[] — a bucket: id, class, chunk, op (the symbolic op's name), name, position, copy (order, index and runs), bytes_in and bytes_out (sums over its members), members (weight, number, position, chunk, layer)
UNWIND $rows AS row
MATCH (c:RankClass {id: $instance + '/' + toString(row.class)})
MATCH (s:SymOp {id: $graph + '/' + row.op})
CREATE (c)-[:RUNS]->(o:Op:Collective {
  id: row.id, instance: $instance, class: row.class, index: row.copy.index, runs: row.copy.runs, chunk: row.chunk,
  template: s.template, position: row.position, `order`: row.copy.`order`, name: row.name, sym: s.id, block: s.block,
  type: s.type, kind: s.kind, phase: s.phase, `when`: s.`when`, flops: 0, bytes_read: 0, bytes_written: 0,
  temporary: 0, axis: s.axis, comm_bytes: row.bytes_in, comm_out_bytes: row.bytes_out, dtype: $dtypes[s.dtype]
})-[:COPY_OF]->(s)
WITH o, row
UNWIND row.members AS member
// Without `row`: an engine that holds all lines at once would hold its list once for each line.
WITH o, member
MATCH (t:SymTensor {id: member.weight})
CREATE (o)-[:CARRIES {
  number: member.number, position: member.position, chunk: member.chunk, layer: member.layer
}]->(t)
