// Write CARRIES relationships from Op to SymTensor nodes.
//
// mode: writes
// param rows: map[] — source, target: ids; values: properties
UNWIND $rows AS row
MATCH (a:Op {id: row.source})
MATCH (b:SymTensor {id: row.target})
CREATE (a)-[r:CARRIES]->(b)
SET r += row.values
