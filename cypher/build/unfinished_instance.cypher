// Instances that are being built or deleted, or were when their process died.
//
// mode: reads
// column id: string — the instance's id
// column owner: string? — the process that builds or deletes it
// column expired: boolean — its lease has run out
MATCH (i:Instance)
WHERE i.state <> 'ready'
RETURN i.id AS id, i.owner AS owner, i.lease < timestamp() AS expired
ORDER BY id
