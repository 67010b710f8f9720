// Write what the best plans have that a running shard has timed. No row if another process has it now.
//
// mode: writes
// param search: string — the shard's own id
// param owner: string — who runs it
// param limits: float[] — what they have of what is to be small, ascending
// column id: string — the shard's own id
MATCH (s:Search {id: $search})
WHERE s.owner = $owner
SET s.limits = $limits
RETURN s.id AS id
