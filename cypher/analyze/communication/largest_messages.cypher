// The ten largest messages: collectives and sends by the bytes of one rank's operand.
//
// mode: reads
// param instance: string — id of the instance
// column name: string — the operator; layers count from the start of its stage
// column kind: string — all_reduce, all_gather, reduce_scatter, all_to_all or send
// column axis: string — mesh axis of the group: tp, dp, pp …
// column phase: string — forward, backward or optimizer
// column dtype: string — number format of the elements
// column bytes: integer [B] — operand of one message on one rank
// column class: integer — rank class that issues it
// column stages: integer[] — pipeline stages of that class
// column ranks: integer — ranks of that class
// keep: name, bytes, kind, axis, ranks
MATCH (:Instance {id: $instance})-[:HAS_CLASS]->(c:RankClass)-[:RUNS]->(o:Op)
WHERE o.type IN ['collective', 'send']
WITH c, o ORDER BY o.comm_bytes DESC, o.class, o.template, o.`order` LIMIT 10
RETURN o.name AS name, o.kind AS kind, o.axis AS axis, o.phase AS phase, o.dtype AS dtype, o.comm_bytes AS bytes,
  c.class AS class, c.stages AS stages, c.ranks AS ranks
ORDER BY bytes DESC, class, name
