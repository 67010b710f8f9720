// Tasks in the steps of a profile's lanes, each with an edge to its task. They may be written again.
//
// mode: writes
// param rows: map[] — id; of: the task's id; values: all other properties
UNWIND $rows AS row
MATCH (t:Task {id: row.of})
MERGE (n:TaskTime {id: row.id})
SET n += row.values
MERGE (n)-[:OF]->(t)
