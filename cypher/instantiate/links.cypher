// Edges between two ops each.
//
// mode: writes
// param rows: map[] — source and target: ids of ops
UNWIND $rows AS row
MATCH (a:Op {id: row.source})
MATCH (b:Op {id: row.target})
MERGE (a)-[:DEP {kind: 'data'}]->(b)
