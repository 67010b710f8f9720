// Edges between two ops each.
//
// mode: writes
// param rows: map[] — source and target: ids of ops; kind: data or limit
UNWIND $rows AS row
MATCH (a:Op {id: row.source})
MATCH (b:Op {id: row.target})
MERGE (a)-[:DEP {kind: row.kind}]->(b)
