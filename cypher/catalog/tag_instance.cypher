// Rename an instance. Its time of creation does not change.
//
// mode: writes
// param instance: string — the instance's id
// param name: string — its new name
MATCH (i:Instance {id: $instance, state: 'ready'})
SET i.name = $name
