// Whether a profile is the newest of a user, made or asked for: then a request for it changes nothing.
//
// mode: reads
// param profile: string — the profile's id
// param user: string — the user
// column name: string? — its name
// column builder: string? — the process that made it
// column newest: boolean — whether the user has no newer one
MATCH (p:Profile {id: $profile, state: 'ready'})
OPTIONAL MATCH (o:Profile {state: 'ready'})
WHERE (o.claim ENDS WITH ' ' + $user OR o.builder ENDS WITH ' ' + $user) AND o.created >= p.created
WITH p, collect(o.id) AS own
RETURN p.name AS name, p.builder AS builder, own = [p.id] AS newest
