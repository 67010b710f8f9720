// The FILLED_BY relationships from Leg to Segment nodes of one profile.
//
// mode: reads
// param id: string — the profile's id
// column source: string — the id where it begins
// column target: string — the id where it ends
// column values: map — its properties
MATCH (:Profile {id: $id})-[:HAS_LEG]->(a:Leg)
MATCH (a)-[r:FILLED_BY]->(b:Segment)
RETURN a.id AS source, b.id AS target, properties(r) AS values
