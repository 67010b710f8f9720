// The COPY_OF relationships from Op to SymOp nodes of one instance.
//
// mode: reads
// param id: string — the instance's id
// column source: string — the id where it begins
// column target: string — the id where it ends
// column values: map — its properties
MATCH (:Instance {id: $id})-[:HAS_CLASS]->(:RankClass)-[:RUNS]->(a:Op)
MATCH (a)-[r:COPY_OF]->(b:SymOp)
RETURN a.id AS source, b.id AS target, properties(r) AS values
