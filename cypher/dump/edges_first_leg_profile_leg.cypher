// The FIRST_LEG relationships from Profile to Leg nodes of one profile.
//
// mode: reads
// param id: string — the profile's id
// column source: string — the id where it begins
// column target: string — the id where it ends
// column values: map — its properties
MATCH (a:Profile {id: $id})
MATCH (a)-[r:FIRST_LEG]->(b:Leg)
RETURN a.id AS source, b.id AS target, properties(r) AS values
