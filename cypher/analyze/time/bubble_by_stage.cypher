// How the ranks of each pipeline stage spend a profile's step, on average. Busy, exposed, bubble and idle add up to the
// step.
//
// mode: reads
// param profile: string — id of the profile
// column stage: integer — pipeline stage
// column ranks: integer — ranks of the stage
// column busy: integer [ns] — time computing
// column exposed: integer [ns] — time communicating while nothing is computed
// column bubble: integer [ns] — time waiting for other stages
// column idle: integer [ns] — time waiting for ranks of the same stage, and all remaining time
// column bubble_share: float [ratio] — share of the step that is bubble
// column busy_share: float [ratio] — share of the step that is computing
MATCH (p:Profile {id: $profile})-[:HAS_LANE]->(l:LaneTime)
WITH p.step AS step, l.stage AS stage, sum(l.ranks) AS ranks, sum(l.ranks * l.busy) AS busy,
  sum(l.ranks * l.exposed) AS exposed, sum(l.ranks * l.bubble) AS bubble, sum(l.ranks * l.idle) AS idle
RETURN stage, ranks, busy / ranks AS busy, exposed / ranks AS exposed, bubble / ranks AS bubble, idle / ranks AS idle,
  CASE WHEN step > 0 THEN toFloat(bubble) / ranks / step ELSE 0.0 END AS bubble_share,
  CASE WHEN step > 0 THEN toFloat(busy) / ranks / step ELSE 0.0 END AS busy_share
ORDER BY stage
