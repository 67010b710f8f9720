// The OF relationships from LaneTime to RankClass nodes of one profile.
//
// mode: reads
// param id: string — the profile's id
// column source: string — the id where it begins
// column target: string — the id where it ends
// column values: map — its properties
MATCH (:Profile {id: $id})-[:HAS_LANE]->(a:LaneTime)
MATCH (a)-[r:OF]->(b:RankClass)
RETURN a.id AS source, b.id AS target, properties(r) AS values
