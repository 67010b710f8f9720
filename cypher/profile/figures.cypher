// The figures of a profile that is complete.
//
// mode: reads
// param profile: string — the profile's id
// column step: integer [ns] — length of the step
// column unscaled: integer [ns] — length of the step without the scalings
// column mfu: float? [ratio] — model FLOPs over what the peaks would do in the step
// column dimensions: string[]? — network dimensions; null if the profile does not state what is sent into them
// column memory: integer? [B] — what its fullest rank holds at its peak; null if an older stagedb made it
// column name: string? — what its maker called it
MATCH (p:Profile {id: $profile, state: 'ready'})
RETURN p.step AS step, p.unscaled AS unscaled, p.mfu AS mfu, p.dimensions AS dimensions, p.memory AS memory,
  p.name AS name
