// The collectives and messages of a run, each with its recorded members.
//
// mode: reads
// param run: string — id of the run
// column kind: string — all_gather, send …
// column axis: string? — name of the group
// column sequence: integer? — number of the collective in its group
// column group_size: integer? [ranks] — ranks of the group
// column group: string? — global ranks of the group, or both of a message
// column message: integer? [B] — operand on one rank; null: not recorded
// column by_order: boolean — members were found by their order alone
// column ready: integer? [ns] — when its last member begins; null: the run has no times
// column last: integer? — the rank that begins last; null: the run has no times
// column waited: integer? [ns] — time that the others wait for it; null: the run has no times
// column ranks: integer[] — recorded members, ascending
// column ops: integer[] — index of each member's op on its lane
MATCH (:Run {id: $run})-[:HAS_COLLECTIVE]->(c:RunCollective)-[m:HAS_MEMBER]->(o:RunOp)
WITH c, m, o ORDER BY m.rank
WITH c, collect(m.rank) AS ranks, collect(o.index) AS ops
RETURN c.kind AS kind, c.axis AS axis, c.sequence AS sequence, c.group_size AS group_size,
  c.group AS group, c.message AS message,
  c.by_order AS by_order, c.ready AS ready, c.last AS last, c.waited AS waited, ranks, ops
ORDER BY c.number
