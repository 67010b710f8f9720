// Count the ops of each class.
//
// mode: writes
// param instance: string — the instance's id
// param rows: map[] — class
UNWIND $rows AS row
MATCH (o:Op {instance: $instance, class: row.class})
WITH row, count(o) AS ops
MATCH (c:RankClass {id: $instance + '/' + toString(row.class)})
SET c.ops = ops
