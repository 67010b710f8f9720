// The memory peaks of all instances whose memory is computed. An interrupted computation has fewer classes than the
// instance.
//
// mode: reads
// column instance: string — id of the instance
// column classes: integer — rank classes with a peak
// column peak: integer [B] — the most that a rank of one of them holds at once
MATCH (i:Instance {state: 'ready'})-[:HAS_CLASS]->(:RankClass)-[:HAS_MEMORY]->(m:Memory)
RETURN i.id AS instance, count(m) AS classes, max(m.peak) AS peak
ORDER BY instance
