// The plans of a search that were timed, the best first, each with why it loses and the instance that it became.
//
// mode: reads
// param search: string — id of the search
// column place: integer — its place, from 0
// column step: integer [ns] — length of the step
// column peak: integer [B] — what the fullest rank holds
// column sent: integer? [B] — what the rank that sends most sends in a step; null in searches of an older stagedb
// column code: string — why it loses; `best` for the best one
// column why: string — the same as a sentence
// column system: string — name of the system
// column ranks: integer [ranks] — size of the world
// column tp: integer? — degree of tensor parallelism; null, here and below, if all plans of the search have the same
// column pp: integer? — pipeline stages
// column cp: integer? — degree of context parallelism
// column dp: integer? — degree of data parallelism
// column ep: integer? — degree of expert parallelism
// column micro_batch_size: integer? [sequences] — sequences of one micro-batch on one rank of dp
// column zero: integer? — ZeRO stage
// column hsdp: integer? — copies of what ZeRO shards
// column sp: boolean? — sequence parallelism
// column strategy: string? — sharding rules of the regions, as JSON
// column recompute: string? — what the backward computes again
// column recompute_every: integer? — which layers recompute: every n-th
// column recompute_first: integer? — which layers recompute: so many at the beginning of each chunk
// column schedule: string? — pipeline schedule
// column virtual_stages: integer? — chunks of a stage
// column instance: string? — id of the instance of this plan, if the store has it
// keep: step, peak, why, tp, pp, dp, micro_batch_size, zero, virtual_stages, recompute, code
MATCH (:Search {id: $search, state: 'ready'})-[:TRIED]->(b:Candidate {fate: 'timed'})
OPTIONAL MATCH (b)-[:MADE]->(i:Instance {state: 'ready'})
RETURN b.place AS place, b.step AS step, b.peak AS peak, b.sent AS sent, b.code AS code, b.why AS why,
  b.system AS system, b.ranks AS ranks, b.tp AS tp, b.pp AS pp, b.cp AS cp, b.dp AS dp, b.ep AS ep,
  b.micro_batch_size AS micro_batch_size, b.zero AS zero, b.hsdp AS hsdp, b.sp AS sp, b.strategy AS strategy,
  b.recompute AS recompute, b.recompute_every AS recompute_every, b.recompute_first AS recompute_first,
  b.schedule AS schedule, b.virtual_stages AS virtual_stages, i.id AS instance
ORDER BY place
