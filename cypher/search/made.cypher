// The instances that plans of a search became, each with its profiles on the system of the plan: those without
// measured or scaled durations and without axes that block.
//
// mode: reads
// param search: string — the search's id
// column place: integer — place of the plan in the search, from 0
// column instance: string — the instance's id
// column name: string — what it is called where nobody names it
// column names: string[] — its names, as space/name
// column profiles: string[] — ids of its profiles on the system, the newest first
MATCH (:Search {id: $search, state: 'ready'})-[:TRIED]->(c:Candidate)-[:MADE]->(i:Instance {state: 'ready'})
OPTIONAL MATCH (n:Name)-[:NAMES]->(i)
WITH c, i, collect(n.space + '/' + n.name) AS names
OPTIONAL MATCH (i)<-[:OF]-(p:Profile {state: 'ready', system: c.system})
WHERE size(p.scalings) = 0 AND size(coalesce(p.blocking, [])) = 0 AND p.durations IS NULL
WITH c, i, names, p
ORDER BY p.created DESC, p.id
RETURN c.place AS place, i.id AS instance, i.name AS name, names, collect(p.id) AS profiles
ORDER BY place, instance
