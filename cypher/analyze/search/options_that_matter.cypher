// Which option of a plan matters most in a search: for each value the least step of all plans that have it. Options
// whose values differ most come first. A plan that was not timed counts with the lower bound of its step; those that do
// not fit, or are no plans, do not count.
//
// mode: reads
// param search: string — id of the search
// column option: string — the option
// column value: string — its value
// column step: integer [ns] — the shortest step of plans with the value, or a lower bound of it
// column exact: boolean — the step is that of a plan that was timed
// column longer: float [ratio] — by how much that is longer than with the option's best value
// column plans: integer — plans with the value
// column timed: integer — those that were timed
// column spread: float [ratio] — the largest `longer` of the option
MATCH (:Search {id: $search, state: 'ready'})-[:TRIED]->(c:Candidate)
WHERE c.fate IN ['timed', 'slower', 'untried'] AND c.step > 0
UNWIND [
  ['tp', toString(c.tp)], ['pp', toString(c.pp)], ['cp', toString(c.cp)], ['dp', toString(c.dp)],
  ['ep', toString(c.ep)], ['micro_batch_size', toString(c.micro_batch_size)], ['zero', toString(c.zero)],
  ['hsdp', toString(c.hsdp)], ['sp', toString(c.sp)], ['recompute', c.recompute],
  ['strategy', coalesce(c.strategy, 'built-in')],
  ['recompute_every', toString(c.recompute_every)], ['recompute_first', toString(c.recompute_first)],
  ['schedule', c.schedule],
  ['virtual_stages', toString(c.virtual_stages)], ['recipe', c.recipe], ['cp_kind', c.cp_kind],
  ['ulysses', toString(c.ulysses)], ['dispatch', c.dispatch], ['expert_tp', toString(c.expert_tp)],
  ['counted_ends', c.counted_ends], ['scatter_gather', toString(c.scatter_gather)],
  ['overlap_experts', toString(c.overlap_experts)], ['system', c.system], ['ranks', toString(c.`ranks`)]
] AS pair
WITH pair[0] AS option, pair[1] AS value, c
WHERE value IS NOT NULL
WITH option, value, min(c.step) AS step, min(CASE WHEN c.fate = 'timed' THEN c.step END) AS known,
  sum(c.plans) AS plans, sum(CASE WHEN c.fate = 'timed' THEN 1 ELSE 0 END) AS timed
WITH option, min(step) AS least, max(step) AS most,
  collect({value: value, step: step, known: known, plans: plans, timed: timed}) AS values
WHERE size(values) > 1
UNWIND values AS each
RETURN option, each.value AS value, each.step AS step, coalesce(each.known = each.step, false) AS exact,
  toFloat(each.step) / least - 1.0 AS longer, each.plans AS plans, each.timed AS timed,
  toFloat(most) / least - 1.0 AS spread
ORDER BY spread DESC, option, step, value
