// The lanes of a run: ranks that executed the same ops in the same order.
//
// mode: reads
// param run: string — id of the run
// column lane: integer — its number
// column stage: integer — pipeline stage of its ranks
// column members: integer[] — its ranks
MATCH (:Run {id: $run})-[:HAS_LANE]->(l:RunLane)
RETURN l.lane AS lane, l.stage AS stage, l.members AS members
ORDER BY lane
