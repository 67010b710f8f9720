// Write OF relationships from LaneTime to RankClass nodes.
//
// mode: writes
// param rows: map[] — source, target: ids; values: properties
UNWIND $rows AS row
MATCH (a:LaneTime {id: row.source})
MATCH (b:RankClass {id: row.target})
CREATE (a)-[r:OF]->(b)
SET r += row.values
