// Write OF relationships from OpTime to Op nodes.
//
// mode: writes
// param rows: map[] — source, target: ids; values: properties
UNWIND $rows AS row
MATCH (a:OpTime {id: row.source})
MATCH (b:Op {id: row.target})
CREATE (a)-[r:OF]->(b)
SET r += row.values
