// The CONTAINS relationships from Segment to OpTime nodes of one profile.
//
// mode: reads
// param id: string — the profile's id
// column source: string — the id where it begins
// column target: string — the id where it ends
// column values: map — its properties
MATCH (:Profile {id: $id})-[:HAS_SEGMENT]->(a:Segment)
MATCH (a)-[r:CONTAINS]->(b:OpTime)
RETURN a.id AS source, b.id AS target, properties(r) AS values
