// The names of all instances and profiles.
//
// mode: reads
// column id: string — id of what the name means
// column name: string — the name, as space/name
MATCH (n:Name)-[:NAMES]->(thing)
RETURN thing.id AS id, n.space + '/' + n.name AS name
ORDER BY name
