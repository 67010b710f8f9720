// The DEP relationships from Op to Op nodes of one instance.
//
// mode: reads
// param id: string — the instance's id
// column source: string — the id where it begins
// column target: string — the id where it ends
// column values: map — its properties
MATCH (:Instance {id: $id})-[:HAS_CLASS]->(:RankClass)-[:RUNS]->(a:Op)
MATCH (a)-[r:DEP]->(b:Op)
RETURN a.id AS source, b.id AS target, properties(r) AS values
