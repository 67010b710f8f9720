// Call an instance by another name. When it was made stays as it is.
//
// mode: writes
// param instance: string — the instance's id
// param name: string — what it is called from now on
MATCH (i:Instance {id: $instance, state: 'ready'})
SET i.name = $name
