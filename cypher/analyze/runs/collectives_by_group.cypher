// What the ranks of a run communicate: by group, kind, phase and number format. Runs without times have it, too.
//
// A collective counts once on each of its imported ranks, with its operand there; a message on its sender and its receiver.
//
// mode: reads
// param run: string — id of the run
// column axis: string? — name of the group, as the framework describes it; null if none was recorded
// column kind: string — all_reduce, all_gather, send …
// column phase: string — forward, backward, recompute, optimizer or unknown
// column dtype: string? — format of the elements; null: not recorded
// column group_size: integer? [ranks] — ranks of the group; null: not recorded
// column calls: integer — collectives and messages, all imported ranks together
// column bytes: integer? [B] — their operands, all imported ranks together; null where some were not recorded
// keep: axis, kind, phase, dtype, group_size, calls, bytes
MATCH (:Run {id: $run})-[:HAS_LANE]->(l:RunLane)-[:HAS_OP_TIME]->(o:RunOp)
WHERE o.type IN ['collective', 'send', 'recv']
WITH o.axis AS axis, o.kind AS kind, o.phase AS phase, o.dtype AS dtype, o.group_size AS group_size,
  sum(l.ranks) AS calls, sum(l.ranks * o.message) AS bytes, count(o) AS ops, count(o.message) AS known
RETURN axis, kind, phase, dtype, group_size, calls, CASE WHEN ops = known THEN bytes END AS bytes
ORDER BY bytes DESC, calls DESC, axis, kind, phase, dtype, group_size
