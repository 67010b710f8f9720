// Write DEP relationships from SymOp to SymOp nodes.
//
// mode: writes
// param rows: map[] — source, target: ids; values: properties
UNWIND $rows AS row
MATCH (a:SymOp {id: row.source})
MATCH (b:SymOp {id: row.target})
CREATE (a)-[r:DEP]->(b)
SET r += row.values
