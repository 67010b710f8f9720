// All complete profiles of complete instances, the newest first.
//
// mode: reads
// column id: string — digest of the instance's id, the system, measured durations, scalings and blocking axes
// column name: string? — what it is called where nobody names it
// column instance: string — id of its instance
// column instance_name: string — what that instance is called where nobody names it
// column system: string — the system's name
// column scalings: string[] — durations that were scaled
// column blocking: string[] — mesh axes whose communication a rank waits for
// column ranks: integer — size of the world
// column step: integer [ns] — length of the step
// column unscaled: integer [ns] — length of the step without the scalings
// column tokens_per_second: float? [tokens/s] — of all ranks
// column mfu: float? [ratio] — model FLOPs over what the peaks would do in the step
// column hfu: float? [ratio] — hardware FLOPs over the same, with recomputing
// column memory: integer? [B] — what its fullest rank holds at its peak; null if an older stagedb made it
// column room: integer? [B] — memory of one accelerator for tensors; null if it has no bound
// column measured_time: float [ratio] — share of the modelled time that was measured
// column created: integer [ms] — when it was made, since 1970 (UTC)
// column builder: string? — the process that made it
// column claim: string? — the process that last asked for it
MATCH (p:Profile {state: 'ready'})-[:OF]->(i:Instance {state: 'ready'})
RETURN p.id AS id, p.name AS name, p.instance AS instance, i.name AS instance_name, p.system AS system,
  p.scalings AS scalings, coalesce(p.blocking, []) AS blocking, p.world AS ranks,
  p.step AS step, p.unscaled AS unscaled, p.tokens_per_second AS tokens_per_second, p.mfu AS mfu, p.hfu AS hfu,
  p.memory AS memory, p.room AS room, p.measured_time AS measured_time, p.created AS created,
  p.builder AS builder, p.claim AS claim
ORDER BY created DESC, id
