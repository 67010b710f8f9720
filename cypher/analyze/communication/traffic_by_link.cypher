// The load of each link of the network, the busiest first. A link is the port of one rank into one dimension of the
// network. All traffic of the rank in that dimension goes through it. Ranks with the same times load their links equally.
//
// mode: reads
// param profile: string — id of the profile
// column dimension: string — network dimension
// column class: integer — rank class
// column stage: integer — pipeline stage
// column rank: integer — the smallest of the ranks with these times
// column ranks: integer — number of ranks with these times; each has a link of its own
// column messages: integer — collectives and sends of a rank in a step that cross the dimension
// column wire_bytes: integer [B] — bytes that a rank sends into it in a step
// column bandwidth: float? [B/s] — of the link, in one direction; null if it has no bound
// column busy: integer [ns] — time for these bytes at that bandwidth
// column share: float [ratio] — share of the step that is busy; 1: the link is always busy
// column time: integer [ns] — time of these messages, with latencies and other delays
// keep: dimension, stage, wire_bytes, bandwidth, share, time
MATCH (p:Profile {id: $profile})-[:HAS_LANE]->(l:LaneTime)-[:HAS_OP_TIME]->(t:OpTime)
WHERE t.type IN ['collective', 'send'] AND t.wires IS NOT NULL AND t.count > 0
UNWIND range(0, size(t.wires) - 1) AS at
WITH p, l, t.wires[at] AS dimension, sum(t.count) AS messages, sum(t.count * t.wire_bytes[at]) AS wire_bytes,
  sum(t.total) AS time
UNWIND range(0, size(p.dimensions) - 1) AS place
WITH p, l, dimension, messages, wire_bytes, time, p.dimensions[place] AS name, p.dimension_bandwidths[place] AS rate
WHERE name = dimension
WITH p.step AS step, l, dimension, messages, wire_bytes, time, CASE WHEN rate > 0 THEN rate END AS bandwidth,
  CASE WHEN rate > 0 THEN 1e9 * wire_bytes / rate ELSE 0.0 END AS busy
RETURN dimension, l.class AS class, l.stage AS stage, l.rank AS rank, l.ranks AS ranks, messages, wire_bytes, bandwidth,
  toInteger(busy) AS busy, CASE WHEN step > 0 THEN busy / step ELSE 0.0 END AS share, time
ORDER BY share DESC, dimension, rank
