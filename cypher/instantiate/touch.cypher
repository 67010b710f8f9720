// Make an existing instance the newest again, with another name if one is given.
//
// mode: writes
// param instance: string — the instance's id
// param name: string? — its new name; null keeps the one that it has
// param claim: string — the process that asks for it, with its user
MATCH (i:Instance {id: $instance, state: 'ready'})
SET i.created = timestamp(), i.claim = $claim, i.name = coalesce($name, i.name)
