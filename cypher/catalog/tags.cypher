// The tags of all graphs, instances and profiles.
//
// mode: reads
// column id: string — id of what has the tag
// column tag: string — the tag
MATCH (t:Tag)-[:TAGS]->(thing)
RETURN thing.id AS id, t.id AS tag
ORDER BY tag, id
