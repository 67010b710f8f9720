// Write the tasks of a profile's lanes.
//
// mode: writes
// param rows: map[] — id; lane: id of its lane; of: id of the task; values: all other properties
UNWIND $rows AS row
MATCH (l:LaneTime {id: row.lane})
MATCH (k:Task {id: row.of})
CREATE (l)-[:HAS_TASK_TIME]->(t:TaskTime {id: row.id})-[:OF]->(k)
SET t += row.values
