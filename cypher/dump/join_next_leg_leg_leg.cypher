// Write NEXT_LEG relationships from Leg to Leg nodes.
//
// mode: writes
// param rows: map[] — source, target: ids; values: properties
UNWIND $rows AS row
MATCH (a:Leg {id: row.source})
MATCH (b:Leg {id: row.target})
CREATE (a)-[r:NEXT_LEG]->(b)
SET r += row.values
