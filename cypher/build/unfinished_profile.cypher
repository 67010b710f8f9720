// Profiles that are being built or deleted, or were when their process died.
//
// mode: reads
// column id: string — the profile's id
// column owner: string? — the process that builds or deletes it
// column expired: boolean — its lease has run out
MATCH (p:Profile)
WHERE p.state <> 'ready'
RETURN p.id AS id, p.owner AS owner, p.lease < timestamp() AS expired
ORDER BY id
