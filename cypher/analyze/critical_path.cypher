// The critical path of a profile, from the begin of the step to its end: what lies in one task of one lane in a row is a
// leg. Nothing on it can take longer without a longer step.
//
// mode: reads
// param profile: string — id of the profile
// column number: integer — of the leg, from 0
// column stage: integer — pipeline stage
// column class: integer — rank class
// column rank: integer — the smallest of the ranks that keep this time
// column task: string — forward, backward, input_gradient, weight_gradient or step
// column microbatch: integer? — which microbatch; null for the step
// column chunk: integer — part of the stage, where a stage holds several
// column start: integer [ns] — when the leg begins
// column finish: integer [ns] — when it ends
// column ns: integer [ns] — its length
// column waited_for: string — why it began no earlier: start, dependency, stream, member (of a group) or message
MATCH (t:TaskTime {profile: $profile})
WHERE size(t.legs) > 0
UNWIND range(0, size(t.legs) - 1) AS at
RETURN t.legs[at] AS number, t.stage AS stage, t.class AS class, t.rank AS rank, t.kind AS task,
  t.microbatch AS microbatch, t.chunk AS chunk, t.leg_starts[at] AS start, t.leg_finishes[at] AS finish,
  t.leg_finishes[at] - t.leg_starts[at] AS ns, t.leg_reasons[at] AS waited_for
ORDER BY number
