// Connect each collective that reduces one gradient to the gradient's weight. Buckets, which carry many weights, have
// edges of their own.
//
// mode: writes
// param instance: string — the instance's id
// column connected: integer — how many
MATCH (:Instance {id: $instance})-[:HAS_CLASS]->(:RankClass)-[:RUNS]->(o:Collective)-[:COPY_OF]->(s:SymOp)
MATCH (s)-[:READS]->(:SymTensor {role: 'gradient'})-[:GRADIENT_OF]->(w:SymTensor)
MERGE (o)-[r:CARRIES]->(w)
SET r.number = 0, r.position = o.position, r.chunk = o.chunk, r.layer = o.layer
RETURN count(r) AS connected
