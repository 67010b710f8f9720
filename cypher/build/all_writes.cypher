// The tensors that each op of a graph writes, by slot.
//
// mode: reads
// param id: string — the graph's id
// column op: string — the op's name
// column tensors: string[] — names of tensors
MATCH (:Graph {id: $id})-[:HAS_OP]->(o:SymOp)-[r:WRITES]->(t:SymTensor)
WITH o.name AS op, r.slot AS slot, t.name AS tensor
ORDER BY op, slot
RETURN op, collect(tensor) AS tensors
