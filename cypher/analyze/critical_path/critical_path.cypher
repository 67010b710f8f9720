// The critical path of a profile, leg by leg, from the beginning of the step to its end. A leg is a stretch of the path
// inside one task of one lane. If anything on the path takes longer, so does the step.
//
// mode: reads
// param profile: string — id of the profile
// column number: integer — number of the leg, from 0
// column stage: integer — pipeline stage
// column class: integer — rank class
// column rank: integer — the smallest of the ranks with these times
// column task: string — forward, backward, input_gradient, weight_gradient or step
// column microbatch: integer? — which micro-batch; null for the step
// column chunk: integer — part of the stage, if the stage holds several
// column start: integer [ns] — when the leg begins
// column finish: integer [ns] — when it ends
// column ns: integer [ns] — its length
// column waited_for: string — why it did not begin earlier: start, dependency, stream, member (of a group) or message
// keep: number, stage, task, microbatch, start, ns, waited_for, rank
MATCH (:Profile {id: $profile})-[:FIRST_LEG]->(:Leg)-[:NEXT_LEG*0..]->(g:Leg)-[:IN_TASK]->(k:TaskTime)
RETURN g.number AS number, g.stage AS stage, g.class AS class, g.rank AS rank, k.kind AS task,
  k.microbatch AS microbatch, k.chunk AS chunk, g.start AS start, g.finish AS finish, g.ns AS ns,
  g.reason AS waited_for
ORDER BY number
