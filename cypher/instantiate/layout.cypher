// Give an instance the numbers from which its ranks and groups follow, and the digests of these.
//
// mode: writes
// param instance: string — the instance's id
// param owner: string — who builds it
// param properties: map — class_table, class_cp, class_ep, group_axes …: see `Instance` in the data model
MATCH (i:Instance {id: $instance, owner: $owner})
SET i += $properties
