// Chain the collectives and sends of each task in issue order: a rank issues them one by one. Both gradients are one
// task's work unless backwards are split, and a step is that of all chunks. Receives are left out: they only hold back what reads them.
//
// mode: writes
// param instance: string — the instance's id
// param split: boolean — whether input and weight gradients are tasks of their own
MATCH (:Instance {id: $instance})-[:HAS_CLASS]->(:RankClass)-[:RUNS]->(o:Op)
WHERE o.type IN ['collective', 'send']
WITH o.class AS class, CASE o.template WHEN 'step' THEN 0 ELSE o.chunk END AS chunk,
  CASE
    WHEN o.template = 'forward' THEN 0
    WHEN o.template = 'step' THEN 2
    WHEN $split AND o.template = 'weight_gradient' THEN 3
    ELSE 1
  END AS part, o
ORDER BY class, chunk, part, o.chunk, o.`order`
WITH class, chunk, part, collect(o) AS ops
UNWIND range(0, size(ops) - 2) AS i
WITH ops[i] AS a, ops[i + 1] AS b
MERGE (a)-[:DEP {kind: 'program'}]->(b)
