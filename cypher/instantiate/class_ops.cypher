// Count the ops of each class.
//
// mode: writes
// param instance: string — the instance's id
MATCH (o:Op {instance: $instance})
WITH o.class AS class, count(*) AS ops
MATCH (c:RankClass {id: $instance + '/' + toString(class)})
SET c.ops = ops
