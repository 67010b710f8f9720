// Write the lanes of a profile.
//
// mode: writes
// param profile: string — the profile's id
// param rows: map[] — id; of: id of the rank class; values: all other properties
MATCH (p:Profile {id: $profile})
UNWIND $rows AS row
MATCH (c:RankClass {id: row.of})
CREATE (p)-[:HAS_LANE]->(l:LaneTime {id: row.id})-[:OF]->(c)
SET l += row.values
