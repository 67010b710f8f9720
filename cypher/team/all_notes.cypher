// All notes, with what they are about.
//
// mode: reads
// column kind: string — Graph, Instance, Profile, Search or Run
// column thing: string — the id of that
// column id: string — the note's id
// column text: string — the remark
// column user: string — the user who wrote it
// column time: integer [ms since 1970] — when
MATCH (u:User)<-[:DONE_BY]-(m:Note)-[:ABOUT]->(x:Graph|Instance|Profile|Search|Run)
RETURN CASE WHEN x:Graph THEN 'Graph' WHEN x:Instance THEN 'Instance' WHEN x:Profile THEN 'Profile'
  WHEN x:Run THEN 'Run' ELSE 'Search' END AS kind,
  x.id AS thing, m.id AS id, m.text AS text, u.id AS user, m.time AS time
ORDER BY kind, thing, id
