// The peaks of an instance's rank classes, with the stages that are in each.
//
// mode: reads
// param instance: string — the instance's id
// column class: integer — the rank class
// column stages: integer[] — its pipeline stages
// column ranks: integer [ranks] — how many ranks it has
// column peak: integer [bytes] — the most that one of them holds
// column phase: string — when: forward, backward or optimizer
// column task: integer — index of the task that runs then
// column microbatch: integer? — its microbatch
// column name: string — the op that runs then
MATCH (:Instance {id: $instance})-[:HAS_CLASS]->(c:RankClass)-[:HAS_MEMORY]->(m:Memory)
RETURN m.class AS class, c.stages AS stages, c.ranks AS ranks, m.peak AS peak, m.phase AS phase, m.task AS task,
  m.microbatch AS microbatch, m.name AS name
ORDER BY class
