// Write OF relationships from TaskTime to Task nodes.
//
// mode: writes
// param rows: map[] — source, target: ids; values: properties
UNWIND $rows AS row
MATCH (a:TaskTime {id: row.source})
MATCH (b:Task {id: row.target})
CREATE (a)-[r:OF]->(b)
SET r += row.values
