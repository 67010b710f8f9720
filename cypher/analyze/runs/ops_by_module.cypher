// How often each operator or kernel of a run ran, by module and phase: the fifty that ran most often. Runs without times
// have it, too.
//
// mode: reads
// param run: string — id of the run
// column module: string? — path of the module, or the annotation of the program around it; null: neither was recorded
// column phase: string — forward, backward, recompute, optimizer or unknown
// column operator: string — name of the kernel or operator
// column kind: string — matmul, attention, all_gather …
// column calls: integer — how often it ran, all imported ranks together
// column shapes: integer — how many different shapes its inputs had; 0: none was recorded
// keep: module, phase, operator, kind, calls, shapes
MATCH (:Run {id: $run})-[:HAS_LANE]->(l:RunLane)-[:HAS_OP_TIME]->(o:RunOp)
WITH coalesce(o.module, CASE WHEN o.block <> '' THEN o.block END) AS module, o.phase AS phase, o.name AS operator,
  o.kind AS kind, sum(l.ranks) AS calls, count(DISTINCT o.shapes) AS shapes
RETURN module, phase, operator, kind, calls, shapes
ORDER BY calls DESC, module, phase, operator, kind LIMIT 50
