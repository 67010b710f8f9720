// The notes about all graphs, instances and profiles.
//
// mode: reads
// column id: string — id of what the note is about
// column note: string — its text
// column origin: string? — the dump that it came from; null if a user wrote it here
MATCH (m:Note)-[:ABOUT]->(thing)
RETURN thing.id AS id, m.text AS note, m.origin AS origin
ORDER BY id, note
