// The work of a step of an instance, all ranks together.
//
// mode: reads
// param instance: string — id of the instance
// column flops: float [flop] — FLOPs
// column sent: float [B] — operands of collectives and sends
MATCH (:Instance {id: $instance, state: 'ready'})-[:HAS_CLASS]->(c:RankClass)-[:RUNS]->(o:Op)
WHERE o.type <> 'recv'
RETURN sum(toFloat(c.ranks) * o.runs * o.flops) AS flops,
  sum(toFloat(c.ranks) * o.runs * coalesce(o.comm_bytes, 0)) AS sent
