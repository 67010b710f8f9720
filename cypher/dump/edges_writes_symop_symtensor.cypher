// The WRITES relationships from SymOp to SymTensor nodes of one graph.
//
// mode: reads
// param id: string — the graph's id
// column source: string — the id where it begins
// column target: string — the id where it ends
// column values: map — its properties
MATCH (:Graph {id: $id})-[:HAS_OP]->(a:SymOp)
MATCH (a)-[r:WRITES]->(b:SymTensor)
RETURN a.id AS source, b.id AS target, properties(r) AS values
