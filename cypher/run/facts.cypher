// A run: its name, its length and what was recorded.
//
// mode: reads
// param run: string — id of the run
// column id: string — the run's id
// column name: string? — its name
// column tool: string — what recorded it
// column step: integer? [ns] — from its first op to its last end; null: the run has no times
// column job_ranks: integer [ranks] — ranks of the job, recorded or not
// column devices: string[] — names of the accelerators
MATCH (r:Run {id: $run})
RETURN r.id AS id, r.name AS name, r.tool AS tool, r.step AS step, r.job_ranks AS job_ranks,
  r.devices AS devices
