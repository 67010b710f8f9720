// Write a match with its findings. No row if the run or the instance is gone. A match that is there stays as it is.
//
// mode: writes
// param run: string — id of the run
// param instance: string — id of the instance
// param match: string — the match's id
// param values: map — properties of the match
// param findings: map[] — properties of each finding
// column match: string — the match's id
MATCH (r:Run {id: $run, state: 'ready'})
MATCH (i:Instance {id: $instance, state: 'ready'})
MERGE (m:Match {id: $match})
ON CREATE SET m += $values, m.created = timestamp()
MERGE (r)-[:HAS_MATCH]->(m)
MERGE (m)-[:AGAINST]->(i)
FOREACH (row IN $findings |
  MERGE (f:Finding {id: row.id})
  SET f += row
  MERGE (m)-[:HAS_FINDING]->(f)
)
RETURN m.id AS match
