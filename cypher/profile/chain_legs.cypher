// Chain the legs of a profile's critical path: the profile to the first one, each to the next.
//
// mode: writes
// param profile: string — the profile's id
MATCH (p:Profile {id: $profile})-[:HAS_LEG]->(g:Leg)
WITH p, g
ORDER BY g.number
WITH p, collect(g) AS legs
WITH p, legs, legs[0] AS first
MERGE (p)-[:FIRST_LEG]->(first)
WITH legs
UNWIND range(0, size(legs) - 2) AS at
WITH legs[at] AS a, legs[at + 1] AS b
MERGE (a)-[:NEXT_LEG]->(b)
