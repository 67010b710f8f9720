// The PEAKS_IN relationships from Memory to Task nodes of one instance.
//
// mode: reads
// param id: string — the instance's id
// column source: string — the id where it begins
// column target: string — the id where it ends
// column values: map — its properties
MATCH (:Instance {id: $id})-[:HAS_CLASS]->(:RankClass)-[:HAS_MEMORY]->(a:Memory)
MATCH (a)-[r:PEAKS_IN]->(b:Task)
RETURN a.id AS source, b.id AS target, properties(r) AS values
