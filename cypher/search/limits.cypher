// Write what the best plans have that a running shard has timed. No row if another process has it now.
//
// mode: writes
// param search: string — the shard's own id
// param owner: string — who runs it
// param properties: map — limits: what they have of what is to be small; limit_ranks: on how many ranks each one is
// column id: string — the shard's own id
MATCH (s:Search {id: $search})
WHERE s.owner = $owner
SET s += $properties
RETURN s.id AS id
