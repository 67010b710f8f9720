// The best plan of a search for accelerators of several sizes, among the plans that were timed, and whether one that was
// not timed may be better: then a search with that memory may find it.
//
// mode: reads
// param search: string — id of the search
// column memory: integer [B] — what an accelerator has for tensors
// column step: integer [ns] — length of the step
// column verdict: string — `best`, or `may be beaten` by a plan that was only bounded, or was not tried
// column bound: integer? [ns] — no plan that may fit, and was not timed, has a shorter one; null if there is none, 0 if no bound is known
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
// column schedule: string? — pipeline schedule
// column virtual_stages: integer? — chunks of a stage
// keep: memory, step, verdict, peak, tp, pp, dp, micro_batch_size, zero, recompute
MATCH (s:Search {id: $search, state: 'ready'})-[:TRIED]->(c:Candidate)
WHERE c.fate IN ['timed', 'slower', 'untried', 'memory']
UNWIND [16, 24, 32, 40, 48, 64, 80, 96, 128, 144, 192, 288] AS size
WITH s, c, size * 1000000000 AS memory
WHERE c.peak <= memory
WITH s, memory, min(CASE WHEN c.fate = 'timed' THEN c.place END) AS place,
  min(CASE WHEN c.fate <> 'timed' THEN c.step END) AS bound,
  min(CASE WHEN c.fate <> 'timed' THEN c.peak END) AS smallest,
  sum(CASE WHEN c.fate IN ['untried', 'memory'] THEN 1 ELSE 0 END) AS open
WHERE place IS NOT NULL
MATCH (s)-[:TRIED]->(b:Candidate)
WHERE b.place = place
// A set that is slower is worse than the first plan by what the search makes best, but perhaps better than another one.
WITH memory, bound, b,
  bound IS NULL OR (place = 0 AND open = 0) OR (s.by = 'step' AND bound >= b.step)
    OR (s.by = 'memory' AND smallest >= b.peak) AS best
RETURN memory, b.step AS step, CASE WHEN best THEN 'best' ELSE 'may be beaten' END AS verdict, bound, b.peak AS peak,
  b.system AS system, b.ranks AS ranks, b.tp AS tp, b.pp AS pp, b.cp AS cp, b.dp AS dp, b.ep AS ep,
  b.micro_batch_size AS micro_batch_size, b.zero AS zero, b.recompute AS recompute, b.schedule AS schedule,
  b.virtual_stages AS virtual_stages
ORDER BY memory
