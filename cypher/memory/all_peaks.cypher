// The peaks of an instance's rank classes, with the stages that are in each.
//
// mode: reads
// param instance: string — the instance's id
// column class: integer — the rank class
// column stages: integer[] — its pipeline stages
// column ranks: integer [ranks] — how many ranks it has
// column peak: integer [bytes] — the most bytes that one rank holds
// column phase: string — phase of the peak: forward, backward or optimizer
// column task: integer — index of the task that runs at the peak
// column microbatch: integer? — its micro-batch
// column name: string — the op that runs at the peak
MATCH (:Instance {id: $instance})-[:HAS_CLASS]->(c:RankClass)-[:HAS_MEMORY]->(m:Memory)
RETURN m.class AS class, c.stages AS stages, c.ranks AS ranks, m.peak AS peak, m.phase AS phase, m.task AS task,
  m.microbatch AS microbatch, m.name AS name
ORDER BY class
