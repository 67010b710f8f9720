// The newest events: what changed the store.
//
// mode: reads
// param since: integer [ms since 1970] — only events from then on
// param user: string? — only this user's; null: everybody's
// param thing: string? — only about this graph, instance, profile, search or query; null: about all
// param limit: integer — at most so many
// column time: integer [ms since 1970] — when
// column user: string? — who
// column action: string — made, removed, named …
// column kind: string — of what: graph, instance, profile, search or query
// column thing: string — its id, or the name of a query
// column detail: string? — the name, the tag, the model or the system
// column version: string — version of stagedb
// column command: string — the command line, or the program that used the Python API
MATCH (e:Event)
WHERE e.time >= $since AND ($thing IS NULL OR e.thing = $thing)
OPTIONAL MATCH (e)-[:DONE_BY]->(u:User)
WITH e, u
WHERE $user IS NULL OR u.id = $user
RETURN e.time AS time, u.id AS user, e.action AS action, e.kind AS kind, e.thing AS thing, e.detail AS detail,
  e.version AS version, e.command AS command
ORDER BY time DESC, e.id
LIMIT $limit
