// Where the time of a run goes, by module and phase: the thirty with the most time. Modules are recorded with Python's
// calls (`with_stack`); ops without one are a row without a module.
//
// mode: reads
// param run: string — id of the run
// column module: string? — path of the module, such as Llama_0/Layer_3/Attention_0
// column phase: string — forward, backward, recompute, optimizer or unknown
// column ops: integer — ops that it launched, on all lanes
// column time: integer [ns] — of a rank in the mean
// column share: float [ratio] — share of the run
// keep: module, phase, time, share, ops
MATCH (r:Run {id: $run})-[:HAS_LANE]->(l:RunLane)-[:HAS_OP_TIME]->(o:RunOp)
WHERE o.type = 'compute' OR o.type = 'copy'
WITH r.step AS step, r.world AS world, o.module AS module, o.phase AS phase, count(o) AS ops,
  sum(o.duration * l.ranks) AS total
WITH step, module, phase, ops, total / world AS time
RETURN module, phase, ops, time, CASE WHEN step > 0 THEN toFloat(time) / step ELSE 0.0 END AS share
ORDER BY time DESC, module, phase LIMIT 30
