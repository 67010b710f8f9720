// Connect each task to the tasks of neighbouring stages that receive its message.
//
// mode: writes
// param rows: map[] — source and target: ids of tasks; hop: how many stages further the target is
UNWIND $rows AS row
MATCH (a:Task {id: row.source})
MATCH (b:Task {id: row.target})
MERGE (a)-[:FEEDS {axis: 'pp', hop: row.hop}]->(b)
