// Write FILLED_BY relationships from Leg to Segment nodes.
//
// mode: writes
// param rows: map[] — source, target: ids; values: properties
UNWIND $rows AS row
MATCH (a:Leg {id: row.source})
MATCH (b:Segment {id: row.target})
CREATE (a)-[r:FILLED_BY]->(b)
SET r += row.values
