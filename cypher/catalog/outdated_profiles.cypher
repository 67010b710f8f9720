// Profiles that an older schema wrote: they are hidden until they are made again.
//
// mode: reads
// column id: string — the profile's id
// column name: string? — its name, given by the user
// column instance: string — id of its instance
// column step: integer [ns] — length of the step
// column system: string — the whole system, as JSON
// column durations: string? — measured durations that replaced modelled ones, as JSON
// column scalings: string[] — durations that were scaled
// column blocking: string[]? — mesh axes whose communication a rank waits for
MATCH (p:Profile {state: 'outdated'})
RETURN p.id AS id, p.name AS name, p.instance AS instance, p.step AS step, p.system_json AS system,
  p.durations AS durations, p.scalings AS scalings, p.blocking AS blocking
ORDER BY id
