// The rank classes of an instance.
//
// mode: reads
// param instance: string — the instance's id
// column id: string — the class's id
// column number: integer — the class
// column digest: string — digest of what its ranks do
// column stages: integer[] — its pipeline stages
// column first_layers: integer[] — by stage and chunk: what an op's layer needs to be its layer in the model
// column cp: integer — coordinate on cp of the ranks whose work it is
// column ep: integer — coordinate on ep of the ranks whose work it is
// column dp: integer? — coordinate on dp of the ranks whose work it is; absent in instances of an older stagedb
// column ranks: integer [ranks] — number of its ranks
// column ops: integer — number of its ops
// column ops_digest: string? — digest of the ops that it was given; absent in instances from before schema 5
// column edges_digest: string? — digest of their edges
// column tasks_digest: string? — digest of its tasks
MATCH (:Instance {id: $instance})-[:HAS_CLASS]->(c:RankClass)
RETURN c.id AS id, c.class AS number, c.digest AS digest, c.stages AS stages, c.first_layers AS first_layers,
  c.cp AS cp, c.ep AS ep, c.dp AS dp, c.ranks AS ranks, c.ops AS ops,
  c.ops_digest AS ops_digest, c.edges_digest AS edges_digest, c.tasks_digest AS tasks_digest
ORDER BY number
