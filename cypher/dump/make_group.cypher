// Write Group nodes, each joined to the node that it belongs to.
//
// mode: writes
// param rows: map[] — id; parent: the id of that node; values: all properties
UNWIND $rows AS row
MATCH (p:Instance {id: row.parent})
CREATE (p)-[:HAS_GROUP]->(n:Group {id: row.id})
SET n += row.values
