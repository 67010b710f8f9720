// The memory of a run: what its devices and hosts hold at the moments of the fullest step.
//
// mode: reads
// param run: string — id of the run
// column place: string — device 0, or host
// column absolute: boolean — bytes are all that the process holds; else what was allocated since the begin
// column members: integer[] — ranks that share it
// column step_number: integer? — the profiler's number of the fullest step
// column phase: string — phase of the peak
// column module: string? — the module that the peak is for
// column moments: string[] — moments of the step
// column bytes: integer[] [bytes] — allocated at each of them
// column starts: integer[] [ns] — when each is
// column operators: string[] — the operator that runs at each; empty: none
MATCH (:Run {id: $run})-[:HAS_LANE]->(:RunLane)-[:HAS_MEMORY]->(m:RunMemory)-[:HAS_LEVEL]->(n:RunMemoryLevel)
WITH m, n
ORDER BY m.id, n.moment
WITH m, collect(n) AS levels
RETURN m.place AS place, m.absolute AS absolute, m.members AS members, m.step_number AS step_number,
  m.phase AS phase, m.module AS module, [n IN levels | n.moment] AS moments, [n IN levels | n.bytes] AS bytes,
  [n IN levels | n.start] AS starts, [n IN levels | coalesce(n.operator, '')] AS operators
ORDER BY members, place
