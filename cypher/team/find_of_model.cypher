// Profiles of a model under plans with the given words, the most tokens a second an accelerator
// first. Those with scaled durations are left out.
//
// mode: reads
// param model: string — the model's name
// param words: map — words of the plan and their values, as properties of `Instance`
// param system: string? — the system's name; null: any
// param fits: boolean — whether only those are wanted that fit into the accelerator's memory
// param limit: integer — how many profiles
// column id: string — the profile's id
// column name: string? — what the profile is called where nobody names it
// column instance: string — the instance's id
// column instance_name: string — what the instance is called where nobody names it
// column model: string — name of the model
// column plan: string — the plan's words, as JSON
// column ranks: integer — size of the world
// column system: string — the system's name
// column step: integer [ns] — length of the step
// column tokens_per_second: float? [tokens/s] — of all ranks
// column tokens_per_accelerator: float? [tokens/s] — of one rank, on average
// column mfu: float? [ratio] — model FLOPs over what the peaks would do in the step
// column memory: integer? [B] — what the fullest rank holds at its peak; null if an older stagedb made the profile
// column room: integer? [B] — memory of one accelerator for tensors; null if it has no bound
// column measured_time: float [ratio] — share of the modelled time that was measured
// column created: integer [ms] — when it was made, since 1970 (UTC)
// column builder: string? — the process that made it
MATCH (g:Graph {name: $model})<-[:OF]-(i:Instance {state: 'ready'})<-[:OF]-(p:Profile {state: 'ready'})
WHERE ($system IS NULL OR p.system = $system) AND size(p.scalings) = 0
  AND all(word IN keys($words) WHERE i[word] = $words[word])
  AND (NOT $fits OR p.memory <= p.room OR p.memory IS NOT NULL AND p.room IS NULL)
WITH g, i, p, p.tokens_per_second / i.world AS tokens_per_accelerator
ORDER BY coalesce(tokens_per_accelerator, 0.0) DESC, p.step, p.id LIMIT $limit
RETURN p.id AS id, p.name AS name, i.id AS instance, i.name AS instance_name, g.name AS model, i.plan AS plan,
  i.world AS ranks, p.system AS system, p.step AS step, p.tokens_per_second AS tokens_per_second,
  tokens_per_accelerator, p.mfu AS mfu,
  p.memory AS memory, p.room AS room, p.measured_time AS measured_time, p.created AS created, p.builder AS builder
ORDER BY coalesce(tokens_per_accelerator, 0.0) DESC, step, id
