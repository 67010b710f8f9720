// Write PEAKS_AT relationships from Memory to Op nodes.
//
// mode: writes
// param rows: map[] — source, target: ids; values: properties
UNWIND $rows AS row
MATCH (a:Memory {id: row.source})
MATCH (b:Op {id: row.target})
CREATE (a)-[r:PEAKS_AT]->(b)
SET r += row.values
