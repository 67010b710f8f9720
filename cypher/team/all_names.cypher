// All names, with what they mean.
//
// mode: reads
// column kind: string — Graph, Instance or Profile
// column thing: string — the id of that
// column space: string — the user or the team whose name it is
// column name: string — the name in that space
// column user: string — the user who set it last
// column time: integer [ms since 1970] — when
MATCH (n:Name)-[:NAMES]->(x:Instance|Profile)
RETURN CASE WHEN x:Graph THEN 'Graph' WHEN x:Instance THEN 'Instance' ELSE 'Profile' END AS kind,
  x.id AS thing, n.space AS space, n.name AS name, n.user AS user, n.time AS time
ORDER BY kind, space, name
