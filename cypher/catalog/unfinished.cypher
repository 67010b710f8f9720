// What a process builds or deletes, or did so when it ended.
//
// mode: reads
// column kind: string — Graph, Instance, Profile, Search or Run
// column id: string — its id
// column name: string? — its name
// column state: string — building or deleting
// column owner: string? — the process that builds or deletes it
// column expired: boolean — its lease has run out
// column created: integer? [ms] — when its building began, since 1970 (UTC)
MATCH (n:Graph|Instance|Profile|Search|Run)
WHERE n.state IN ['building', 'deleting']
RETURN CASE WHEN n:Graph THEN 'Graph' WHEN n:Instance THEN 'Instance' WHEN n:Profile THEN 'Profile'
  WHEN n:Run THEN 'Run' ELSE 'Search' END AS kind, n.id AS id,
  n.name AS name, n.state AS state, n.owner AS owner, coalesce(n.lease < timestamp(), true) AS expired,
  n.created AS created
ORDER BY kind, id
