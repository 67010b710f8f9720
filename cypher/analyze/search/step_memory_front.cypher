// The front of step against memory: plans of a search that were timed, of which no other one is both as short and as
// small.
//
// mode: reads
// param search: string — id of the search
// column place: integer — place of the plan in the search, from 0
// column step: integer [ns] — length of the step
// column peak: integer [B] — what the fullest rank holds
// column system: string — name of the system
// column ranks: integer [ranks] — size of the world
// column tp: integer? — degree of tensor parallelism; null, here and below, if all plans of the search have the same
// column pp: integer? — pipeline stages
// column cp: integer? — degree of context parallelism
// column dp: integer? — degree of data parallelism
// column ep: integer? — degree of expert parallelism
// column micro_batch_size: integer? [sequences] — sequences of one micro-batch on one rank of dp
// column zero: integer? — ZeRO stage
// column recompute: string? — what the backward computes again
// column recompute_every: integer? — which layers recompute: every n-th
// column recompute_first: integer? — which layers recompute: so many at the beginning of each chunk
// column schedule: string? — pipeline schedule
// column virtual_stages: integer? — chunks of a stage
// keep: step, peak, tp, pp, dp, micro_batch_size, zero, recompute
MATCH (:Search {id: $search, state: 'ready'})-[:TRIED]->(c:Candidate {fate: 'timed'})
WITH collect(c) AS all, collect({step: c.step, peak: c.peak, place: c.place}) AS others
UNWIND all AS b
WITH b, [o IN others
  WHERE o.step <= b.step AND o.peak <= b.peak AND (o.step < b.step OR o.peak < b.peak OR o.place < b.place)] AS better
WHERE size(better) = 0
RETURN b.place AS place, b.step AS step, b.peak AS peak, b.system AS system, b.ranks AS ranks, b.tp AS tp, b.pp AS pp,
  b.cp AS cp, b.dp AS dp, b.ep AS ep, b.micro_batch_size AS micro_batch_size, b.zero AS zero,
  b.recompute AS recompute, b.recompute_every AS recompute_every, b.recompute_first AS recompute_first,
  b.schedule AS schedule, b.virtual_stages AS virtual_stages
ORDER BY step, place
