// The notes about all graphs, instances and profiles.
//
// mode: reads
// column id: string — id of what the note is about
// column note: string — its text
MATCH (m:Note)-[:ABOUT]->(thing)
RETURN thing.id AS id, m.text AS note
ORDER BY id, note
