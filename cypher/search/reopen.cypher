// Let a search that ended before all plans were tried go on. The first SET takes the write lock. No row if it is not
// complete, or has no plans left.
//
// mode: writes
// param search: string — the search's id
// param owner: string — who wants to go on
// column id: string — the search's id
MATCH (s:Search {id: $search})
SET s.claim = $owner
WITH s
WHERE s.state = 'ready' AND s.covered = false
SET s.state = 'building', s.owner = $owner, s.lease = 0
RETURN s.id AS id
