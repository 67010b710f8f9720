// Write CONTAINS relationships from Segment to OpTime nodes.
//
// mode: writes
// param rows: map[] — source, target: ids; values: properties
UNWIND $rows AS row
MATCH (a:Segment {id: row.source})
MATCH (b:OpTime {id: row.target})
CREATE (a)-[r:CONTAINS]->(b)
SET r += row.values
