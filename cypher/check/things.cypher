// All complete graphs, instances, profiles, searches and runs, each with what it is made from.
//
// mode: reads
// column kind: string — Graph, Instance, Profile, Search or Run
// column id: string — its id
// column parents: string[] — the ids of the graphs or instances that it is made from; there must be one, or none
MATCH (n:Graph|Instance|Profile|Search|Run {state: 'ready'})
OPTIONAL MATCH (n)-[:OF]->(p:Graph|Instance)
WITH n, collect(p.id) AS parents
RETURN CASE WHEN n:Graph THEN 'Graph' WHEN n:Instance THEN 'Instance' WHEN n:Profile THEN 'Profile'
  WHEN n:Run THEN 'Run' ELSE 'Search' END AS kind, n.id AS id, parents
ORDER BY kind, id
