// The ops of a lane of a run, in the order of their starts.
//
// mode: reads
// param run: string — id of the run
// param lane: integer — the lane
// column name: string — short name of the kernel
// column type: string — compute, copy, collective, send or recv
// column kind: string — matmul, attention, all_gather …
// column phase: string — forward, backward, recompute, optimizer …
// column axis: string? — name of the group that communicates
// column block: string — the annotation around it
// column launcher: string? — the operator that launched it
// column shapes: string? — shapes of that operator's inputs
// column dtype: string? — format of the elements on the wire
// column message: integer? [B] — operand of a communication on one rank; null: not recorded
// column bytes: integer? [B] — of a copy
// column stream: string — the stream that it ran on
// column processor: string? — device, host or background
// column step_number: integer? — the profiler's number of the step
// column starts: integer[]? [ns] — when it begins on each rank; null: the run has no times
// column durations: integer[]? [ns] — on each rank; null: the run has no times
// column critical: integer? [ns] — of its time on the critical path; null: the run has no times
// column launches: integer[]? [ns] — when its launch began on each rank
// column synchronised: integer[]? — index of the op that the host had waited for last before the launch, on each rank
// column gradients: boolean — it reduces gradients of modules that are known
MATCH (:Run {id: $run})-[:HAS_LANE]->(:RunLane {lane: $lane})-[:HAS_OP_TIME]->(o:RunOp)
RETURN o.name AS name, o.type AS type, o.kind AS kind, o.phase AS phase, o.axis AS axis,
  o.block AS block, o.launcher AS launcher, o.shapes AS shapes, o.dtype AS dtype, o.message AS message,
  o.bytes AS bytes, o.stream AS stream, o.processor AS processor, o.step_number AS step_number,
  o.starts AS starts, o.durations AS durations, o.critical AS critical, o.launches AS launches,
  o.synchronised AS synchronised, o.modules IS NOT NULL AS gradients
ORDER BY o.index
