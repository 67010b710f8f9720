// The instance and the inputs of a profile: all that is needed to run it again.
//
// mode: reads
// param profile: string — the profile's id
// column instance: string — id of its instance
// column step: integer [ns] — length of the step
// column system: string — all of the system, as JSON
// column durations: string? — measured durations that took the model's place, as JSON
// column scalings: string[] — durations that were scaled
// column blocking: string[]? — mesh axes whose communication a rank waits for
MATCH (p:Profile {id: $profile, state: 'ready'})
RETURN p.instance AS instance, p.step AS step, p.system_json AS system, p.durations AS durations,
  p.scalings AS scalings, p.blocking AS blocking
