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
// Without `row`: an engine that holds all lines at once would hold its lists once for each line.
WITH s, at, row.ns[at] AS ns, row.lane + '/' + toString(row.ops[at]) AS op
MATCH (t:OpTime {id: op})
CREATE (s)-[:CONTAINS {number: at, ns: ns}]->(t)
