// The edges of a rank class as columns. Ends are places of ops in the class.
//
// mode: reads
// param class: string — id of the rank class
// column source: integer[] — the op that runs first
// column target: integer[] — the op that waits
// column kind: string[] — data, program or limit
MATCH (:RankClass {id: $class})-[:RUNS]->(a:Op)-[d:DEP]->(b)
RETURN collect(a.index) AS source, collect(b.index) AS target, collect(d.kind) AS kind
