// The tensors of a graph with all their properties, in the graph's order.
//
// mode: reads
// param id: string — the graph's id
// column tensor: map — its properties
MATCH (:Graph {id: $id})-[:HAS_TENSOR]->(t:SymTensor)
WITH properties(t) AS tensor
RETURN tensor
ORDER BY tensor.number
