// All ranks of an instance as columns. The condition on both properties lets the engines use their common index.
//
// mode: reads
// param instance: string — the instance's id
// column number: integer[] — global ranks
// column class: integer[] — rank class of each
// column tp: integer[] — coordinate
// column cp: integer[] — coordinate
// column dp: integer[] — coordinate
// column pp: integer[] — coordinate
MATCH (r:Rank {instance: $instance})
WHERE r.`rank` >= 0
RETURN collect(r.`rank`) AS number, collect(r.class) AS class, collect(r.tp) AS tp, collect(r.cp) AS cp,
  collect(r.dp) AS dp, collect(r.pp) AS pp
