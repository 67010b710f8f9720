// The newest migration that this database has. No row if it is not a store of stagedb.
//
// mode: reads
// column version: integer — the oldest schema whose programs can use the store
// column applied: integer — number of the newest migration applied
MATCH (s:Store {id: 'stagedb'})
RETURN s.version AS version, coalesce(s.applied, s.version) AS applied
