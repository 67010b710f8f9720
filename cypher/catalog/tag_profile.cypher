// Call a profile by another name. When it was made stays as it is.
//
// mode: writes
// param profile: string — the profile's id
// param name: string — what it is called from now on
MATCH (p:Profile {id: $profile, state: 'ready'})
SET p.name = $name
