// Write IN_TASK relationships from Leg to TaskTime nodes.
//
// mode: writes
// param rows: map[] — source, target: ids; values: properties
UNWIND $rows AS row
MATCH (a:Leg {id: row.source})
MATCH (b:TaskTime {id: row.target})
CREATE (a)-[r:IN_TASK]->(b)
SET r += row.values
