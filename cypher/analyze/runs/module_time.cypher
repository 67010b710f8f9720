// Where the time of a run goes, by module and phase: the thirty with the most time. Modules are recorded with Python's
// calls (`with_stack`); ops without one are rows without a module. Gradients that are reduced together are of the
// innermost module that contains their modules, and `RunOp.modules` lists these.
//
// mode: reads
// param run: string — id of the run
// column module: string? — path of the module, such as Llama_0/Layer_3/Attention_0
// column part: string — module, gradients (reduced in buckets), optimizer, loss, communication or other
// column phase: string — forward, backward, recompute, optimizer or unknown
// column ops: integer — ops that it launched, on all lanes
// column time: integer [ns] — of a rank in the mean
// column share: float [ratio] — share of the run
// keep: module, part, phase, time, share, ops
MATCH (r:Run {id: $run})-[:HAS_LANE]->(l:RunLane)-[:HAS_OP_TIME]->(o:RunOp)
WITH r.step AS step, r.world AS world, o.module AS module, o.phase AS phase, o.duration * l.ranks AS ns,
  CASE
    WHEN o.modules IS NOT NULL THEN 'gradients'
    WHEN o.module IS NOT NULL THEN 'module'
    WHEN o.phase = 'optimizer' OR o.phase = 'unknown' AND o.kind = 'optimizer' THEN 'optimizer'
    WHEN NOT o.type IN ['compute', 'copy'] THEN 'communication'
    WHEN toLower(o.launcher) CONTAINS 'loss' THEN 'loss'
    ELSE 'other'
  END AS part
WITH step, world, module, part, phase, count(*) AS ops, sum(ns) AS total
WITH step, module, part, phase, ops, total / world AS time
RETURN module, part, phase, ops, time, CASE WHEN step > 0 THEN toFloat(time) / step ELSE 0.0 END AS share
ORDER BY time DESC, module, part, phase LIMIT 30
