// The slowest operators of a profile as a graph: the time of each, the op of an instance, and the symbolic op it copies.
//
// mode: reads
// param profile: string — id of the profile
// column time: map — the time of an op on a lane
// column op: map — the op
// column symbolic: map — the op of the graph that it is a copy of
MATCH (:Profile {id: $profile})-[:HAS_LANE]->(:LaneTime)-[:HAS_OP_TIME]->(t:OpTime)
WITH t ORDER BY t.total DESC, t.id LIMIT 12
MATCH (t)-[:OF]->(o:Op)-[:COPY_OF]->(s:SymOp)
RETURN t AS time, o AS op, s AS symbolic
ORDER BY t.total DESC, t.id
