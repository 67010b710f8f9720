// Record that migrations were applied.
//
// mode: writes
// param version: integer — the oldest schema whose programs can use the store
// param applied: integer — the number of the newest migration
// param now: integer [ms since 1970] — the time
MERGE (s:Store {id: 'stagedb'})
ON CREATE SET s.created = $now, s.version = $version, s.applied = $applied
ON MATCH SET s.version = $version, s.applied = $applied
