// Give a run the digest of its content.
//
// mode: writes
// param run: string — the run's id
// param content: string — the digest
MATCH (r:Run {id: $run})
SET r.content = $content
