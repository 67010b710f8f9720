// Connect the tensors that schema 3 wrote to their graphs.
//
// mode: writes
// column done: integer — how many; 0 when none is left
MATCH (t:SymTensor)
OPTIONAL MATCH (t)<-[h:HAS_TENSOR]-(:Graph)
WITH t, h
WHERE h IS NULL
WITH t LIMIT 2000
MATCH (g:Graph {id: t.graph})
MERGE (g)-[:HAS_TENSOR]->(t)
RETURN count(t) AS done
