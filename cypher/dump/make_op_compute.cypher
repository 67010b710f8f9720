// Write Op:Compute nodes, each joined to the node that it belongs to.
//
// mode: writes
// param rows: map[] — id; parent: the id of that node; values: all properties
UNWIND $rows AS row
MATCH (p:RankClass {id: row.parent})
CREATE (p)-[:RUNS]->(n:Op:Compute {id: row.id})
SET n += row.values
