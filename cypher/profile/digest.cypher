// Give a profile the digest of its content.
//
// mode: writes
// param profile: string — the profile's id
// param content: string — the digest
MATCH (p:Profile {id: $profile})
SET p.content = $content
