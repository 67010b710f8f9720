// Graphs that are being built or deleted, or were when their process died.
//
// mode: reads
// column id: string — the graph's id
// column owner: string? — the process that builds or deletes it
// column expired: boolean — its lease has run out
MATCH (g:Graph)
WHERE g.state <> 'ready'
RETURN g.id AS id, g.owner AS owner, g.lease < timestamp() AS expired
ORDER BY id
