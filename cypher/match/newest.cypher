// The instance that a run was matched with last.
//
// mode: reads
// param run: string — id of the run
// column instance: string — id of the instance
MATCH (:Run {id: $run})-[:HAS_MATCH]->(m:Match)-[:AGAINST]->(i:Instance)
RETURN i.id AS instance
ORDER BY m.created DESC, instance
LIMIT 1
