// The class of one rank.
//
// mode: reads
// param instance: string — the instance's id
// param rank: integer — the global rank
// column class: integer — number of its rank class
MATCH (r:Rank {instance: $instance, rank: $rank})
RETURN r.class AS class
