// Make a profile the newest again, with another name if one is given.
//
// mode: writes
// param profile: string — the profile's id
// param name: string? — what it is called from now on; null: as before
// param claim: string — the process that asks for it, with its user
MATCH (p:Profile {id: $profile, state: 'ready'})
SET p.created = timestamp(), p.claim = $claim, p.name = coalesce($name, p.name)
