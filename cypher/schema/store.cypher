// What this database is: the newest migration applied to it, or no row if it is not a store of stagedb.
//
// mode: reads
// column version: integer — number of the newest migration applied
MATCH (s:Store {id: 'stagedb'})
RETURN s.version AS version
