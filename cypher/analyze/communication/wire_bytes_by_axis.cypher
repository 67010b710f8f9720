// The bytes that an instance sends over the network in one step, all ranks together: by mesh axis, kind, phase and number
// format. They need no system: rings send them, and no algorithm without help of the network sends fewer. A profile has
// those of the algorithms that it chose.
//
// What a rank sends of b bytes that it puts in, among n ranks: (n-1)·b in an all-gather, (n-1)/n·b in a reduce-scatter
// and an all-to-all, 2·(n-1)/n·b in an all-reduce, b in a message.
//
// mode: reads
// param instance: string — id of the instance
// column axis: string — mesh axis of the group: tp, dp, pp …
// column kind: string — all_reduce, all_gather, reduce_scatter, all_to_all or send
// column phase: string — forward, backward, recompute or optimizer
// column dtype: string — number format of the elements
// column members: integer? [ranks] — ranks of a group; null for messages, and in instances that are older than this number
// column messages: integer — collectives and sends that ranks issue
// column bytes: integer [B] — what ranks put in, sum over ranks and messages, as in bytes_by_axis
// column wire_bytes: integer? [B] — what ranks send, sum over ranks and messages; null where members are unknown
// keep: axis, kind, wire_bytes, bytes, phase, dtype
MATCH (i:Instance {id: $instance})-[:HAS_CLASS]->(c:RankClass)-[:RUNS]->(o:Op)
WHERE o.type IN ['collective', 'send']
WITH i, o.axis AS axis, o.type AS type, o.kind AS kind, o.phase AS phase, o.dtype AS dtype,
  sum(c.ranks * o.runs) AS messages, sum(c.ranks * o.runs * o.comm_bytes) AS bytes
WITH axis, type, kind, phase, dtype, messages, bytes, CASE WHEN type = 'collective' THEN
  head([k IN range(0, size(coalesce(i.group_axes, [])) - 1) WHERE i.group_axes[k] = axis | i.group_members[k]]) END
  AS members
RETURN axis, kind, phase, dtype, members, messages, bytes,
  CASE WHEN type = 'send' THEN bytes
  // In two parts, so that no product is too large. Exchanges of uneven numbers of tokens may leave a rest.
  ELSE CASE kind WHEN 'all_gather' THEN bytes * (members - 1)
    WHEN 'all_reduce' THEN 2 * (bytes / members * (members - 1) + bytes % members * (members - 1) / members)
    ELSE bytes / members * (members - 1) + bytes % members * (members - 1) / members END END AS wire_bytes
ORDER BY wire_bytes DESC, axis, kind, phase, dtype
