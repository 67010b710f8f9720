// The tags of all graphs, instances and profiles.
//
// mode: reads
// column id: string — id of what has the tag
// column tag: string — the tag
// column origin: string? — the dump that it came from; null if a user wrote it here
MATCH (t:Tag)-[r:TAGS]->(thing)
RETURN thing.id AS id, t.id AS tag, r.origin AS origin
ORDER BY tag, id
