// Add the memory to a profile that an older stagedb made.
//
// mode: writes
// param profile: string — the profile's id
// param memory: integer [B] — what its fullest rank holds at its peak
// param room: integer? [B] — memory of one accelerator for tensors; null if it has no bound
// column id: string — the profile's id
MATCH (p:Profile {id: $profile, state: 'ready'})
SET p.memory = $memory, p.room = $room
RETURN p.id AS id
