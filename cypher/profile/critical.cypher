// The critical path of a profile, an edge from each leg's task to the next one's. They may be written again.
//
// mode: writes
// param rows: map[] — source, target: ids of task times; number; values: the edge's other properties
UNWIND $rows AS row
MATCH (a:TaskTime {id: row.source})
MATCH (b:TaskTime {id: row.target})
MERGE (a)-[r:CRITICAL {number: row.number}]->(b)
SET r.time = row.time, r.source_ns = row.source_ns, r.target_ns = row.target_ns, r.reason = row.reason
