// Instances and profiles that an older schema wrote, and that have not been made again.
//
// mode: reads
// column kind: string — Instance or Profile
// column id: string — its id
// column name: string? — its name, given by the user
// column graph: string? — id of its graph, for an instance
MATCH (n:Instance|Profile {state: 'outdated'})
RETURN CASE WHEN n:Instance THEN 'Instance' ELSE 'Profile' END AS kind, n.id AS id, n.name AS name, n.graph AS graph
ORDER BY kind, id
