// The complete run that was made from exactly these files.
//
// mode: reads
// param sources: string[] — sha256 of each file, ascending
// param format: integer — version of the stored form
// column id: string — the run's id
MATCH (r:RunRank)
WHERE r.source IN $sources
MATCH (n:Run {format: $format, state: 'ready'})-[:HAS_RANK]->(r)
WITH n, count(r) AS ranks, count(DISTINCT r.source) AS files
WHERE n.world = ranks AND files = size($sources)
RETURN n.id AS id
ORDER BY id LIMIT 1
