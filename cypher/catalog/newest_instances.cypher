// The newest complete instances, with what describes them in a line.
//
// mode: reads
// param most: integer — how many, at most
// column id: string — digest of the graph and the plan
// column name: string — what it is called where nobody names it
// column names: string[] — its names, as space/name
// column ranks: integer — size of the world
MATCH (i:Instance {state: 'ready'})
WITH i ORDER BY i.created DESC, i.id LIMIT $most
OPTIONAL MATCH (n:Name)-[:NAMES]->(i)
WITH i, collect(n.space + '/' + n.name) AS names
RETURN i.id AS id, i.name AS name, names, i.world AS ranks
ORDER BY i.created DESC, id
