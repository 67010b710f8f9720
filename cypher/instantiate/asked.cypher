// Whether an instance is the newest of a user, made or asked for: then a request for it changes nothing.
//
// mode: reads
// param instance: string — the instance's id
// param user: string — the user
// column name: string? — its name
// column builder: string? — the process that made it
// column newest: boolean — whether the user has no newer one
MATCH (i:Instance {id: $instance, state: 'ready'})
OPTIONAL MATCH (o:Instance {state: 'ready'})
WHERE (o.claim ENDS WITH ' ' + $user OR o.builder ENDS WITH ' ' + $user) AND o.created >= i.created
WITH i, collect(o.id) AS own
RETURN i.name AS name, i.builder AS builder, own = [i.id] AS newest
