// Where the time of a profile's step goes: sums over all ranks. Busy, exposed, bubble and idle are as long as the step
// on all ranks together.
//
// mode: reads
// param profile: string — the profile's id
// column step: integer [ns] — length of the step
// column tokens: integer [tokens] — tokens of the step
// column world: integer [ranks] — number of ranks
// column busy: integer [ns] — computing
// column exposed: integer [ns] — communicating while nothing is computed
// column bubble: integer [ns] — waiting for other stages
// column idle: integer [ns] — waiting for ranks of the same stage, and all remaining time
MATCH (p:Profile {id: $profile, state: 'ready'})-[:HAS_LANE]->(l:LaneTime)
RETURN p.step AS step, p.tokens AS tokens, p.world AS world, sum(l.ranks * l.busy) AS busy,
  sum(l.ranks * l.exposed) AS exposed, sum(l.ranks * l.bubble) AS bubble, sum(l.ranks * l.idle) AS idle
