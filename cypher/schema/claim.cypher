// Begin to migrate the store, unless another process does so. The first SET takes the write lock, so that the second of
// two simultaneous claims sees the result of the first one.
//
// mode: writes
// param owner: string — who claims it
// param dead: string — an owner that is known to have died; empty if none is
// param lease: integer [ms] — for how long, from now
// param now: integer [ms since 1970] — the time
// column version: integer — number of the newest migration applied
// column owner: string — who migrates it now
MERGE (s:Store {id: 'stagedb'})
ON CREATE SET s.created = $now, s.version = 0
SET s.claim = $owner
WITH s, s.owner IS NULL OR s.owner = $owner OR s.owner = $dead OR s.lease < timestamp() AS free
FOREACH (x IN CASE WHEN free THEN [1] ELSE [] END |
  SET s.owner = $owner, s.lease = timestamp() + $lease
)
RETURN coalesce(s.applied, s.version) AS version, s.owner AS owner
