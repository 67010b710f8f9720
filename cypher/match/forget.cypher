// Delete the node of a match with its findings, and some of its relationships.
//
// mode: writes
// param run: string — id of the run
// param match: string — the match's id
// param limit: integer — at most so many relationships
// column deleted: integer — relationships that were deleted; 0 when none is left
OPTIONAL MATCH (:Run {id: $run})-[:HAS_MATCH]->(m:Match {id: $match})
OPTIONAL MATCH (m)-[:HAS_FINDING]->(f:Finding)
DETACH DELETE f, m
WITH count(*) AS done
OPTIONAL MATCH (:Run {id: $run})-[:HAS_LANE]->(:RunLane)-[:HAS_OP_TIME]->(:RunOp)-[x:MATCHES {match: $match}]->(:Op)
WITH x LIMIT $limit
DELETE x
RETURN count(x) AS deleted
