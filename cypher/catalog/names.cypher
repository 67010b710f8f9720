// The names of all instances and profiles.
//
// mode: reads
// column id: string — id of what the name means
// column name: string — the name, as space/name
// column origin: string? — the dump that it came from; null if a user wrote it here
MATCH (n:Name)-[:NAMES]->(thing)
RETURN thing.id AS id, n.space + '/' + n.name AS name, n.origin AS origin
ORDER BY name
