// Who made a graph, an instance, a profile, a search or a run, when, how, and from what: a row for each input. No row if an
// older stagedb made it.
//
// mode: reads
// param thing: string — its id
// column time: integer [ms since 1970] — when
// column user: string — who
// column version: string — version of stagedb
// column command: string — the command line, or the program that used the Python API
// column input: string? — the kind of an input: card, options, graph, plan, instance, system, durations, search, trace
// column digest: string? — the digest of that input
// column name: string? — its name
MATCH (e:Event {thing: $thing, action: 'made'})-[:DONE_BY]->(u:User)
MATCH (e)-[:MADE]->(n:Graph|Instance|Profile|Search|Run)
OPTIONAL MATCH (e)-[:USED]->(x:Input)
RETURN e.time AS time, u.id AS user, e.version AS version, e.command AS command, x.kind AS input, x.id AS digest,
  x.name AS name
ORDER BY time DESC, input, digest
