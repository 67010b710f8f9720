// Write the segments of a profile's critical path, each with the ops that it contains.
//
// mode: writes
// param profile: string — the profile's id
// param rows: map[] — id; values: all other properties; lane: id of the lane; ops and ns: index of each op and how long it is on the path
MATCH (p:Profile {id: $profile})
UNWIND $rows AS row
CREATE (p)-[:HAS_SEGMENT]->(s:Segment {id: row.id})
SET s += row.values
WITH s, row
UNWIND range(0, size(row.ops) - 1) AS at
MATCH (t:OpTime {id: row.lane + '/' + toString(row.ops[at])})
CREATE (s)-[:CONTAINS {number: at, ns: row.ns[at]}]->(t)
