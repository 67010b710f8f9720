// What this store differs by from others.
//
// mode: reads
// column created: integer [ms since 1970] — when it was made
// column probe: string? — the text that somebody wrote last, to see whether two connections lead here
MATCH (s:Store {id: 'stagedb'})
RETURN s.created AS created, s.probe AS probe
