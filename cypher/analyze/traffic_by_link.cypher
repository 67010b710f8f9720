// How loaded the network is where ranks enter it, the hottest first. A link is a rank's port into one dimension of the
// network, with all that the rank has there; ranks that keep the same time load theirs alike.
//
// mode: reads
// param profile: string — id of the profile
// column dimension: string — network dimension
// column class: integer — rank class
// column stage: integer — pipeline stage
// column rank: integer — the smallest of the ranks that keep this time
// column ranks: integer — how many do, each with a link of its own
// column messages: integer — collectives and sends of a rank in a step that cross the dimension
// column wire_bytes: integer [B] — that a rank sends into it in a step
// column bandwidth: float? [B/s] — of the link, in one direction; null where it has no bound
// column busy: integer [ns] — that these bytes take at that bandwidth
// column share: float [ratio] — busy, of the step: 1 is a link that never rests
// column time: integer [ns] — that these messages take, with latencies and what else holds them up
MATCH (p:Profile {id: $profile})
MATCH (t:OpTime {profile: $profile})
WHERE t.type IN ['collective', 'send'] AND t.wires IS NOT NULL AND t.count > 0
UNWIND range(0, size(t.wires) - 1) AS at
WITH p.step AS step, p.dimensions AS dimensions, p.dimension_bandwidths AS bandwidths, t.wires[at] AS dimension,
  t.class AS class, t.stage AS stage, t.rank AS rank, t.ranks AS ranks, sum(t.count) AS messages,
  sum(t.count * t.wire_bytes[at]) AS wire_bytes, sum(t.total) AS time
UNWIND range(0, size(dimensions) - 1) AS place
WITH step, dimension, class, stage, rank, ranks, messages, wire_bytes, time, dimensions[place] AS name,
  bandwidths[place] AS rate
WHERE name = dimension
WITH step, dimension, class, stage, rank, ranks, messages, wire_bytes, time,
  CASE WHEN rate > 0 THEN rate END AS bandwidth, CASE WHEN rate > 0 THEN 1e9 * wire_bytes / rate ELSE 0.0 END AS busy
RETURN dimension, class, stage, rank, ranks, messages, wire_bytes, bandwidth, toInteger(busy) AS busy,
  CASE WHEN step > 0 THEN busy / step ELSE 0.0 END AS share, time
ORDER BY share DESC, dimension, rank
