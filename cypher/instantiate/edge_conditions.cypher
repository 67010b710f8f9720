// The distinct conditions of a graph's edges.
//
// mode: reads
// param graph: string — the graph's id
// column present: string — an edge exists where this is above 0
MATCH (:Graph {id: $graph})-[:HAS_OP]->(:SymOp)-[d:DEP]->(:SymOp)
WHERE d.present IS NOT NULL
RETURN DISTINCT d.present AS present
ORDER BY present
