// What a search found in all. No row if another process has it now.
//
// mode: writes
// param search: string — the search's id
// param owner: string — who runs it
// param properties: map — size, timed, covered, step, peak, left, seconds, content; shards and finished, or limits
// column id: string — the search's id
MATCH (s:Search {id: $search})
WHERE s.owner = $owner
SET s += $properties
RETURN s.id AS id
