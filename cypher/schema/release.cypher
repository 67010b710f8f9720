// End the claim of a process that migrates the store.
//
// mode: writes
// param owner: string — who has it
MATCH (s:Store {id: 'stagedb', owner: $owner})
REMOVE s.owner, s.lease, s.claim
