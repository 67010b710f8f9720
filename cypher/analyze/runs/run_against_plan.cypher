// What differs between a run and the instances that it was matched with (`stagedb match`): what costs most
// on the critical path first, the rest in the order of the run.
//
// mode: reads
// param run: string — id of the run
// column instance: string — name of the instance
// column finding: string — missing, extra, size, format, group, kind, shape, moved, order, late or slow
// column module: string — where, such as layer.1.attn.wq
// column phase: string — forward, backward, recompute, optimizer or step
// column ranks: integer[] — ranks that have it
// column planned: string — what the plan has; empty: nothing
// column seen: string — what the run has; empty: nothing
// column reason: string — why the plan has it
// column count: integer — ops of each rank
// column time: integer? [ns] — of each rank, of a finding about time
// column critical: integer? [ns] — of these ops, or of the gap, on the critical path of the run; null: none of them ran
// keep: finding, seen, module, ranks, planned, critical
MATCH (:Run {id: $run})-[:HAS_MATCH]->(m:Match)-[:AGAINST]->(i:Instance)
MATCH (m)-[:HAS_FINDING]->(f:Finding)
RETURN i.name AS instance, f.kind AS finding, f.module AS module, f.phase AS phase, f.ranks AS ranks,
  f.planned AS planned, f.seen AS seen, f.reason AS reason, f.count AS count, f.ns AS time,
  f.critical AS critical
ORDER BY m.created DESC, instance, f.number
