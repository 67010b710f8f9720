// Write READS relationships from SymOp to SymTensor nodes.
//
// mode: writes
// param rows: map[] — source, target: ids; values: properties
UNWIND $rows AS row
MATCH (a:SymOp {id: row.source})
MATCH (b:SymTensor {id: row.target})
CREATE (a)-[r:READS]->(b)
SET r += row.values
