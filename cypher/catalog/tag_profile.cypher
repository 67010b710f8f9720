// Rename a profile. Its time of creation does not change.
//
// mode: writes
// param profile: string — the profile's id
// param name: string — its new name
MATCH (p:Profile {id: $profile, state: 'ready'})
SET p.name = $name
