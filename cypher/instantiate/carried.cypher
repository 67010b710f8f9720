// Connect each collective that reduces one gradient to the weight of it. Buckets, which carry many, have theirs.
//
// mode: writes
// param instance: string — the instance's id
// column connected: integer — how many
MATCH (:Instance {id: $instance})-[:HAS_CLASS]->(:RankClass)-[:RUNS]->(o:Collective)-[:COPY_OF]->(s:SymOp)
MATCH (s)-[:READS]->(:SymTensor {role: 'gradient'})-[:GRADIENT_OF]->(w:SymTensor)
MERGE (o)-[r:CARRIES]->(w)
SET r.number = 0, r.position = o.position, r.layer = o.layer
RETURN count(r) AS connected
