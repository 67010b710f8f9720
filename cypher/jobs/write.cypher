// Show how far a job is: its own node, which this makes. What it works on, where it is known and there, gets joined.
//
// mode: writes
// param id: string — the job's id
// param properties: map — the properties of `Job` but the times
// param ago: integer [ms] — the time since it began
// param instance: string? — id of the instance that it works on
// param profile: string? — id of the profile
// param search: string? — id of the search
// param run: string? — id of the run
MERGE (j:Job {id: $id})
ON CREATE SET j.started = timestamp() - $ago
SET j += $properties, j.updated = timestamp()
WITH j
OPTIONAL MATCH (i:Instance {id: $instance})
OPTIONAL MATCH (p:Profile {id: $profile})
OPTIONAL MATCH (s:Search {id: $search})
OPTIONAL MATCH (r:Run {id: $run})
FOREACH (x IN CASE WHEN i IS NULL THEN [] ELSE [i] END | MERGE (j)-[:WORKS_ON]->(x))
FOREACH (x IN CASE WHEN p IS NULL THEN [] ELSE [p] END | MERGE (j)-[:WORKS_ON]->(x))
FOREACH (x IN CASE WHEN s IS NULL THEN [] ELSE [s] END | MERGE (j)-[:WORKS_ON]->(x))
FOREACH (x IN CASE WHEN r IS NULL THEN [] ELSE [r] END | MERGE (j)-[:WORKS_ON]->(x))
