// The critical path of a profile as a graph: its legs in their order, the task of each, and the segments of operators
// that fill them. A very long path is cut after its first legs.
//
// mode: reads
// param profile: string — id of the profile
// column leg: map — a leg
// column task: map — the task that it is a part of
// column segment: map? — the operators that fill it
MATCH (:Profile {id: $profile})-[:FIRST_LEG]->(:Leg)-[:NEXT_LEG*0..]->(g:Leg)-[:IN_TASK]->(k:TaskTime)
OPTIONAL MATCH (g)-[:FILLED_BY]->(s:Segment)
RETURN g AS leg, k AS task, s AS segment
ORDER BY g.number LIMIT 120
