// Whether a profile is the newest of a user, made or asked for: then a request for it changes nothing.
//
// mode: reads
// param id: string — the profile's id
// param user: string — the user
// column newest: boolean — whether the user has no newer one
MATCH (n:Profile {id: $id, state: 'ready'})
OPTIONAL MATCH (:User {id: $user})-[a:ASKED_FOR]->(n)
WITH n, CASE
    WHEN (n.builder ENDS WITH ' ' + $user OR n.claim ENDS WITH ' ' + $user) AND n.created > coalesce(a.time, 0)
    THEN n.created
    ELSE coalesce(a.time, 0)
  END AS mine
OPTIONAL MATCH (o:Profile {state: 'ready'})
WHERE (o.claim ENDS WITH ' ' + $user OR o.builder ENDS WITH ' ' + $user) AND o.created >= mine AND o <> n
WITH n, mine, count(o) AS made
OPTIONAL MATCH (:User {id: $user})-[b:ASKED_FOR]->(x:Profile {state: 'ready'})
WHERE b.time >= mine AND x <> n
WITH mine, made, count(x) AS asked
RETURN mine > 0 AND made = 0 AND asked = 0 AS newest
