// An instance that is asked for again is the newest again, and takes the name that it is given.
//
// mode: writes
// param instance: string — the instance's id
// param name: string? — its new name; null keeps the one that it has
MATCH (i:Instance {id: $instance, state: 'ready'})
SET i.created = timestamp(), i.name = coalesce($name, i.name)
