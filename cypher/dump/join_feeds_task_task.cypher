// Write FEEDS relationships from Task to Task nodes.
//
// mode: writes
// param rows: map[] — source, target: ids; values: properties
UNWIND $rows AS row
MATCH (a:Task {id: row.source})
MATCH (b:Task {id: row.target})
CREATE (a)-[r:FEEDS]->(b)
SET r += row.values
