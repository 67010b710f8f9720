// The NEXT relationships from Task to Task nodes of one instance.
//
// mode: reads
// param id: string — the instance's id
// column source: string — the id where it begins
// column target: string — the id where it ends
// column values: map — its properties
MATCH (:Instance {id: $id})-[:HAS_CLASS]->(:RankClass)-[:SCHEDULES]->(a:Task)
MATCH (a)-[r:NEXT]->(b:Task)
RETURN a.id AS source, b.id AS target, properties(r) AS values
