// What a process builds or deletes, or did so when it died.
//
// mode: reads
// column id: string — the graph's id
// column owner: string? — the process that builds or deletes it
// column expired: boolean — its lease has run out
MATCH (n:Graph)
WHERE n.state IN ['building', 'deleting']
RETURN n.id AS id, n.owner AS owner, n.lease < timestamp() AS expired
ORDER BY id
