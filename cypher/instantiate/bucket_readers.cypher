// The ops of a step that read a gradient wait for the last bucket that the gradient passes.
//
// mode: writes
// param once: string[] — templates that run once a step
// param rows: map[] — bucket and gradient: ids of the bucket's op and of the op that makes the gradient
UNWIND $rows AS row
MATCH (b:Op {id: row.bucket})
MATCH (g:Op {id: row.gradient})
// Both are found by id before an edge is followed; in one pattern a planner may scan all ops for the second.
WITH b, g
MATCH (g)-[:DEP]->(reader:Op)
WHERE reader.template IN $once AND reader.block <> 'bucket'
// All are found before the first edge is made: one engine cannot walk edges while it adds some.
WITH b, collect(DISTINCT reader) AS readers
UNWIND readers AS reader
MERGE (b)-[:DEP {kind: 'data'}]->(reader)
