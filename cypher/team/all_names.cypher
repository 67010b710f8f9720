// All names, with what they mean.
//
// mode: reads
// column kind: string — Instance, Profile or Run
// column thing: string — the id of that
// column space: string — the user or the team whose name it is
// column name: string — the name in that space
// column user: string — the user who set it last
// column time: integer [ms since 1970] — when
MATCH (n:Name)-[:NAMES]->(x:Instance|Profile|Run)
RETURN CASE WHEN x:Instance THEN 'Instance' WHEN x:Run THEN 'Run' ELSE 'Profile' END AS kind,
  x.id AS thing, n.space AS space, n.name AS name, n.user AS user, n.time AS time
ORDER BY kind, space, name
