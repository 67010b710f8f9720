// What an instance sends in one step, all ranks together: by mesh axis, kind, phase and number format.
//
// A collective counts once on each of its ranks, with its input there; a message counts where it is sent.
//
// mode: reads
// param instance: string — id of the instance
// column axis: string — mesh axis of the group: tp, dp, pp …
// column kind: string — all_reduce, all_gather, reduce_scatter, all_to_all or send
// column phase: string — forward, backward or optimizer
// column dtype: string — number format of the elements
// column messages: integer — collectives and sends that ranks issue
// column bytes: integer [B] — sum over ranks and messages
MATCH (c:RankClass {instance: $instance})
MATCH (t:Task {instance: $instance, class: c.class})
WITH c.class AS class, c.ranks AS ranks, t.chunk AS chunk,
  sum(CASE WHEN t.kind = 'forward' THEN 1 ELSE 0 END) AS forwards,
  sum(CASE WHEN t.kind IN ['backward', 'input_gradient'] THEN 1 ELSE 0 END) AS input_gradients,
  sum(CASE WHEN t.kind IN ['backward', 'weight_gradient'] THEN 1 ELSE 0 END) AS weight_gradients
MATCH (o:Op {instance: $instance, class: class, chunk: chunk})
WHERE o.type IN ['collective', 'send']
WITH o, ranks, CASE
    WHEN o.`when` <> 'every' OR o.template = 'step' THEN 1
    WHEN o.template = 'forward' THEN forwards
    WHEN o.template = 'input_gradient' THEN input_gradients
    ELSE weight_gradients
  END AS times
RETURN o.axis AS axis, o.kind AS kind, o.phase AS phase, o.dtype AS dtype,
  sum(ranks * times) AS messages, sum(ranks * times * o.comm_bytes) AS bytes
ORDER BY bytes DESC, axis, kind, phase, dtype
