// Write SymTensor nodes, each joined to the node that it belongs to.
//
// mode: writes
// param rows: map[] — id; parent: the id of that node; values: all properties
UNWIND $rows AS row
MATCH (p:Graph {id: row.parent})
CREATE (p)-[:HAS_TENSOR]->(n:SymTensor {id: row.id})
SET n += row.values
