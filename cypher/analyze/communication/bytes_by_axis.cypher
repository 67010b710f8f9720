// The bytes that an instance sends in one step, all ranks together: by mesh axis, kind, phase and number format.
//
// A collective counts once on each of its ranks, with its input there. A message counts on its sender.
//
// mode: reads
// param instance: string — id of the instance
// column axis: string — mesh axis of the group: tp, dp, pp …
// column kind: string — all_reduce, all_gather, reduce_scatter, all_to_all or send
// column phase: string — forward, backward or optimizer
// column dtype: string — number format of the elements
// column messages: integer — collectives and sends that ranks issue
// column bytes: integer [B] — sum over ranks and messages
MATCH (:Instance {id: $instance})-[:HAS_CLASS]->(c:RankClass)-[:RUNS]->(o:Op)
WHERE o.type IN ['collective', 'send']
RETURN o.axis AS axis, o.kind AS kind, o.phase AS phase, o.dtype AS dtype,
  sum(c.ranks * o.runs) AS messages, sum(c.ranks * o.runs * o.comm_bytes) AS bytes
ORDER BY bytes DESC, axis, kind, phase, dtype
