// Write GRADIENT_OF relationships from SymTensor to SymTensor nodes.
//
// mode: writes
// param rows: map[] — source, target: ids; values: properties
UNWIND $rows AS row
MATCH (a:SymTensor {id: row.source})
MATCH (b:SymTensor {id: row.target})
CREATE (a)-[r:GRADIENT_OF]->(b)
SET r += row.values
