// The queries that users saved for the team.
//
// mode: reads
// column id: string — the space, /, and the name
// column space: string — the user or the team whose query it is
// column name: string — its name
// column text: string — the header and the Cypher
// column user: string — the user who saved it last
// column time: integer [ms since 1970] — when
// column origin: string? — the dump that it came with; null if the user saved it here
MATCH (q:SavedQuery)
RETURN q.id AS id, q.space AS space, q.name AS name, q.text AS text, q.user AS user, q.time AS time,
  q.origin AS origin
ORDER BY name, id
