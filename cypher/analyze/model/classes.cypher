// The rank classes of an instance. Ranks of a class do the same work; only their peers and groups differ.
//
// mode: reads
// param instance: string — id of the instance
// column class: integer — number of the class
// column stages: integer[] — pipeline stages of its ranks
// column layers: integer — layers on each of these stages
// column ranks: integer — ranks in it
// column ops: integer — operators of one rank of the class, each counted once
// column tasks: integer — runs of a template in one step
MATCH (:Instance {id: $instance})-[:HAS_CLASS]->(c:RankClass)
RETURN c.class AS class, c.stages AS stages, c.layers AS layers, c.ranks AS ranks, c.ops AS ops, c.tasks AS tasks
ORDER BY class
