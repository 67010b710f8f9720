// Give an instance the digests of its ranks and groups.
//
// mode: writes
// param instance: string — the instance's id
// param ranks: string — digest of its ranks
// param groups: string — digest of its groups
MATCH (i:Instance {id: $instance})
SET i.ranks_digest = $ranks, i.groups_digest = $groups
