// Write FIRST_LEG relationships from Profile to Leg nodes.
//
// mode: writes
// param rows: map[] — source, target: ids; values: properties
UNWIND $rows AS row
MATCH (a:Profile {id: row.source})
MATCH (b:Leg {id: row.target})
CREATE (a)-[r:FIRST_LEG]->(b)
SET r += row.values
