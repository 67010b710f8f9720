// Write COPY_OF relationships from Op to SymOp nodes.
//
// mode: writes
// param rows: map[] — source, target: ids; values: properties
UNWIND $rows AS row
MATCH (a:Op {id: row.source})
MATCH (b:SymOp {id: row.target})
CREATE (a)-[r:COPY_OF]->(b)
SET r += row.values
