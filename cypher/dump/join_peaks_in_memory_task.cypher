// Write PEAKS_IN relationships from Memory to Task nodes.
//
// mode: writes
// param rows: map[] — source, target: ids; values: properties
UNWIND $rows AS row
MATCH (a:Memory {id: row.source})
MATCH (b:Task {id: row.target})
CREATE (a)-[r:PEAKS_IN]->(b)
SET r += row.values
