// The row of a profile that is whole; no row where the store has none of this id.
//
// mode: reads
// param profile: string — the profile's id
// column instance: string — id of its instance
// column step: integer [ns] — length of the step
// column system: string — all of the system, as JSON
MATCH (p:Profile {id: $profile, state: 'ready'})
RETURN p.instance AS instance, p.step AS step, p.system_json AS system
