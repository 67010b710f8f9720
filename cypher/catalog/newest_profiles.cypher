// The newest complete profiles of complete instances, with what describes them in a line.
//
// mode: reads
// param most: integer — how many, at most
// column id: string — digest of the instance's id, the system, measured durations, scalings and blocking axes
// column name: string? — what it is called where nobody names it
// column names: string[] — its names, as space/name
// column instance_name: string — what its instance is called where nobody names it
// column instance_names: string[] — names of its instance, as space/name
// column system: string — the system's name
// column ranks: integer — size of the world
MATCH (p:Profile {state: 'ready'})-[:OF]->(i:Instance {state: 'ready'})
WITH p, i ORDER BY p.created DESC, p.id LIMIT $most
OPTIONAL MATCH (l:Name)-[:NAMES]->(i)
WITH p, i, collect(l.space + '/' + l.name) AS instance_names
OPTIONAL MATCH (n:Name)-[:NAMES]->(p)
WITH p, i, instance_names, collect(n.space + '/' + n.name) AS names
RETURN p.id AS id, p.name AS name, names, i.name AS instance_name, instance_names, p.system AS system, p.world AS ranks
ORDER BY p.created DESC, id
