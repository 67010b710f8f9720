// The OF relationships from OpTime to Op nodes of one profile.
//
// mode: reads
// param id: string — the profile's id
// column source: string — the id where it begins
// column target: string — the id where it ends
// column values: map — its properties
MATCH (:Profile {id: $id})-[:HAS_LANE]->(:LaneTime)-[:HAS_OP_TIME]->(a:OpTime)
MATCH (a)-[r:OF]->(b:Op)
RETURN a.id AS source, b.id AS target, properties(r) AS values
