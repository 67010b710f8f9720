// The rank classes of an instance.
//
// mode: reads
// param instance: string — the instance's id
// column number: integer — the class
// column digest: string — digest of what its ranks do
// column stages: integer[] — its pipeline stages
// column ops: integer — number of its ops
MATCH (c:RankClass {instance: $instance})
RETURN c.class AS number, c.digest AS digest, c.stages AS stages, c.ops AS ops
ORDER BY number
