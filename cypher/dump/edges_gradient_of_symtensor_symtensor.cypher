// The GRADIENT_OF relationships from SymTensor to SymTensor nodes of one graph.
//
// mode: reads
// param id: string — the graph's id
// column source: string — the id where it begins
// column target: string — the id where it ends
// column values: map — its properties
MATCH (:Graph {id: $id})-[:HAS_TENSOR]->(a:SymTensor)
MATCH (a)-[r:GRADIENT_OF]->(b:SymTensor)
RETURN a.id AS source, b.id AS target, properties(r) AS values
