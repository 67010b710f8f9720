// The NEXT_LEG relationships from Leg to Leg nodes of one profile.
//
// mode: reads
// param id: string — the profile's id
// column source: string — the id where it begins
// column target: string — the id where it ends
// column values: map — its properties
MATCH (:Profile {id: $id})-[:HAS_LEG]->(a:Leg)
MATCH (a)-[r:NEXT_LEG]->(b:Leg)
RETURN a.id AS source, b.id AS target, properties(r) AS values
