// Where the memory of a run peaks: the most that each device and the host have allocated at once, when, and what runs
// then. Ranks whose allocators did the same are one row. It takes a recording with `profile_memory=True`.
//
// mode: reads
// param run: string — id of the run
// column place: string — device 0, or host
// column ranks: integer[] — the ranks
// column peak: integer [B] — the most that is allocated at once
// column since_begin: boolean — bytes count only what was allocated since the recording began
// column reserved: integer? [B] — the most that the allocator held of the device; null: not recorded
// column at: integer [ns] — when it peaks, on the first of the ranks
// column step_number: integer? — the profiler's number of that step
// column phase: string — forward, backward or optimizer
// column operator: string? — the operator that runs then
// column module: string? — the module that the peak is for
// column kernel: string? — the op that is launched for it
// column events: integer — allocations and releases of a rank
// keep: place, peak, ranks, phase, operator, module
MATCH (:Run {id: $run})-[:HAS_LANE]->(:RunLane)-[:HAS_MEMORY]->(m:RunMemory)
OPTIONAL MATCH (m)-[:PEAKS_AT]->(o:RunOp)
RETURN m.place AS place, m.members AS ranks, m.peak AS peak, NOT m.absolute AS since_begin, m.reserved AS reserved,
  m.start AS at, m.step_number AS step_number, m.phase AS phase, m.operator AS operator, m.module AS module,
  o.name AS kernel, m.events AS events
ORDER BY place, peak DESC, ranks
