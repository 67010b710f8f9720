// Write the legs of a profile's critical path, each with its task and its segment.
//
// mode: writes
// param profile: string — the profile's id
// param rows: map[] — id; task: id of the task time; segment: id of the segment; values: all other properties
MATCH (p:Profile {id: $profile})
UNWIND $rows AS row
MATCH (k:TaskTime {id: row.task})
MATCH (s:Segment {id: row.segment})
CREATE (p)-[:HAS_LEG]->(g:Leg {id: row.id})-[:IN_TASK]->(k)
CREATE (g)-[:FILLED_BY]->(s)
SET g += row.values
