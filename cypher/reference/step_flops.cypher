// FLOPs of the ops of an instance, by rank class and number of runs in a step.
//
// mode: reads
// param instance: string — the instance's id
// column class: integer — the rank class
// column ranks: integer — its ranks
// column runs: integer — how often each of these ops runs on a rank
// column flops: integer[] [flop] — FLOPs of one run of each op
MATCH (:Instance {id: $instance})-[:HAS_CLASS]->(c:RankClass)-[:RUNS]->(o:Op)
WHERE o.flops > 0
WITH c.class AS class, c.ranks AS ranks, o.runs AS runs, o.flops AS flops
RETURN class, ranks, runs, collect(flops) AS flops
ORDER BY class, runs
