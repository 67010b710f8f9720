// Connect each task to the next one of its class.
//
// mode: writes
// param rows: map[] — source and target: ids of tasks
UNWIND $rows AS row
MATCH (a:Task {id: row.source})
MATCH (b:Task {id: row.target})
MERGE (a)-[:NEXT]->(b)
