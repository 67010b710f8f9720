// All complete runs, the newest first.
//
// mode: reads
// column id: string — digest of its files
// column name: string? — what it is called where nobody names it
// column tool: string — what recorded it
// column world: integer [ranks] — ranks that were imported
// column job_ranks: integer [ranks] — ranks of the job
// column step: integer? [ns] — time from its first op to the end of its last one; null: the run has no times
// column steps: integer — steps that the profiler counted; 0: it counted none
// column ops: integer — ops of all imported ranks
// column devices: string[] — names of the accelerators
// column busy: integer? [ns] — computing or copying, the mean of the imported ranks; null: the run has no times
// column exposed: integer? [ns] — communicating while nothing is computed or copied, the mean of the imported ranks; null: the run has no times
// column unexplained: integer? [ns] — of the critical path: idle, though the launch is there; null: the run has no times
// column launching: integer? [ns] — of the critical path: idle until a launch; null: the run has no times
// column left_out: string[] — what of the files was not understood
// column created: integer [ms] — when it was imported, since 1970 (UTC)
// column builder: string? — the process that imported it
// column claim: string? — the process that last asked for it
MATCH (r:Run {state: 'ready'})
RETURN r.id AS id, r.name AS name, r.tool AS tool, r.world AS world, r.job_ranks AS job_ranks,
  r.step AS step, r.steps AS steps, r.ops AS ops, r.devices AS devices, r.busy AS busy, r.exposed AS exposed,
  r.unexplained AS unexplained, r.launching AS launching, r.left_out AS left_out, r.created AS created,
  r.builder AS builder, r.claim AS claim
ORDER BY created DESC, id
