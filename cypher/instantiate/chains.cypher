// Chain the collectives and sends of each task in issue order: a rank issues them one by one. Both gradients are one
// task's work. Receives are left out: they only hold back what reads them.
//
// mode: writes
// param instance: string — the instance's id
MATCH (o:Op {instance: $instance})
WHERE o.type = 'collective' OR o.type = 'send'
WITH o.class AS class, o.chunk AS chunk,
  CASE o.template WHEN 'forward' THEN 0 WHEN 'step' THEN 2 ELSE 1 END AS part, o
ORDER BY class, chunk, part, o.`order`
WITH class, chunk, part, collect(o) AS ops
UNWIND range(0, size(ops) - 2) AS i
WITH ops[i] AS a, ops[i + 1] AS b
MERGE (a)-[:DEP {kind: 'program'}]->(b)
