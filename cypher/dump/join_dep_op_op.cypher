// Write DEP relationships from Op to Op nodes.
//
// mode: writes
// param rows: map[] — source, target: ids; values: properties
UNWIND $rows AS row
MATCH (a:Op {id: row.source})
MATCH (b:Op {id: row.target})
CREATE (a)-[r:DEP]->(b)
SET r += row.values
