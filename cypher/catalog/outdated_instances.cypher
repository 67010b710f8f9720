// Instances that an older schema wrote: they are hidden until they are made again.
//
// mode: reads
// column id: string — the instance's id
// column name: string — its name, given by the user
// column graph: string — id of its graph
// column plan: string — the plan's words, as JSON
MATCH (i:Instance {state: 'outdated'})
RETURN i.id AS id, i.name AS name, i.graph AS graph, i.plan AS plan
ORDER BY id
