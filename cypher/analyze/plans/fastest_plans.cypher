// The profiled plans of a model, the most tokens a second an accelerator first, each with its system and MFU. Profiles
// with scaled durations are left out.
//
// mode: reads
// param model: string — name of the model
// column instance: string — id of the instance
// column name: string — name of the instance
// column profile: string — id of the profile
// column system: string — name of the system
// column ranks: integer — number of ranks
// column dp: integer — degree of data parallelism
// column tp: integer — degree of tensor parallelism
// column pp: integer — pipeline stages
// column cp: integer — degree of context parallelism
// column ep: integer — degree of expert parallelism
// column zero: integer — ZeRO stage: dp shards nothing (0), optimizer state (1), gradients too (2), parameters too (3)
// column sp: boolean — sequence parallelism
// column recompute: string — what the backward computes again
// column schedule: string — pipeline schedule
// column micro_batch_size: integer [sequences] — sequences of one micro-batch on one rank of dp
// column global_batch_size: integer [sequences] — sequences of a step
// column seq_len: integer [tokens] — length of a sequence
// column step: integer [ns] — length of the step
// column exposed: integer [ns] — communicating while nothing is computed, on average over all ranks
// column bubble: integer [ns] — waiting for other stages, on average over all ranks
// column tokens_per_second: float? [tokens/s] — of all ranks
// column tokens_per_accelerator: float? [tokens/s] — of one rank, on average
// column mfu: float? [ratio] — model FLOPs over what the peaks would do in the step
// keep: name, tokens_per_accelerator, step, mfu, ranks, tp, pp, dp, system
MATCH (:Graph {name: $model})<-[:OF]-(i:Instance)<-[:OF]-(p:Profile)-[:HAS_LANE]->(l:LaneTime)
WHERE i.state = 'ready' AND p.state = 'ready' AND size(p.scalings) = 0
WITH i, p, sum(l.ranks * l.exposed) / p.world AS exposed, sum(l.ranks * l.bubble) / p.world AS bubble
RETURN i.id AS instance, i.name AS name, p.id AS profile, p.system AS system, p.world AS ranks, i.dp AS dp, i.tp AS tp,
  i.pp AS pp, i.cp AS cp, i.ep AS ep, i.zero AS zero, i.sp AS sp, i.recompute AS recompute, i.schedule AS schedule,
  i.micro_batch_size AS micro_batch_size, i.global_batch_size AS global_batch_size, i.seq_len AS seq_len,
  p.step AS step, exposed, bubble, p.tokens_per_second AS tokens_per_second,
  p.tokens_per_second / p.world AS tokens_per_accelerator, p.mfu AS mfu
ORDER BY coalesce(tokens_per_accelerator, 0.0) DESC, step, profile
