// Instances and profiles that an older schema wrote, and that are not yet made again.
//
// mode: reads
// column kind: string — Instance or Profile
// column id: string — its id
// column name: string? — the name that its maker gave it
// column graph: string? — of an instance, the id of its graph
MATCH (n:Instance|Profile {state: 'outdated'})
RETURN CASE WHEN n:Instance THEN 'Instance' ELSE 'Profile' END AS kind, n.id AS id, n.name AS name, n.graph AS graph
ORDER BY kind, id
