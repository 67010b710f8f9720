// All tags, with what has them.
//
// mode: reads
// column kind: string — Graph, Instance, Profile, Search or Run
// column thing: string — the id of that
// column tag: string — the word
// column user: string? — the user who tagged it
// column time: integer? [ms since 1970] — when
MATCH (t:Tag)-[r:TAGS]->(x:Graph|Instance|Profile|Search|Run)
RETURN CASE WHEN x:Graph THEN 'Graph' WHEN x:Instance THEN 'Instance' WHEN x:Profile THEN 'Profile'
  WHEN x:Run THEN 'Run' ELSE 'Search' END AS kind,
  x.id AS thing, t.id AS tag, r.user AS user, r.time AS time
ORDER BY kind, thing, tag
