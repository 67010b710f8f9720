// Chain the collectives and sends of each task in issue order: a rank issues them one by one. Collectives and sends
// that run once a step are one task of all chunks. Receives are left out: only their readers wait for them.
//
// mode: writes
// param instance: string — the instance's id
// param tasks: map — the number of the kind of task that runs each template
// param once: string[] — templates that run once a step
MATCH (:Instance {id: $instance})-[:HAS_CLASS]->(:RankClass)-[:RUNS]->(o:Op)
WHERE o.type IN ['collective', 'send']
WITH o.class AS class, CASE WHEN o.template IN $once THEN 0 ELSE o.chunk END AS chunk, $tasks[o.template] AS task, o
ORDER BY class, chunk, task, o.chunk, o.`order`
WITH class, chunk, task, collect(o) AS ops
UNWIND range(0, size(ops) - 2) AS i
WITH ops[i] AS a, ops[i + 1] AS b
MERGE (a)-[:DEP {kind: 'program'}]->(b)
