// Connect the ops that schema 3 wrote to their graphs.
//
// mode: writes
// column done: integer — how many; 0 when none is left
MATCH (o:SymOp)
OPTIONAL MATCH (o)<-[h:HAS_OP]-(:Graph)
WITH o, h
WHERE h IS NULL
WITH o LIMIT 2000
MATCH (g:Graph {id: o.graph})
MERGE (g)-[:HAS_OP]->(o)
RETURN count(o) AS done
