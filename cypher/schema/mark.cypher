// Record that a migration was applied.
//
// mode: writes
// param version: integer — the migration's number
// param now: integer [ms since 1970] — the time
MERGE (s:Store {id: 'stagedb'})
ON CREATE SET s.created = $now, s.version = $version
ON MATCH SET s.version = $version
