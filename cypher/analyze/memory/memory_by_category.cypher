// What a rank holds in memory at its peak and at the end of each phase, by category. `stagedb memory` computes it.
//
// mode: reads
// param instance: string — the instance's id
// column class: integer — the rank class
// column moment: string — start, the end of a phase, the most within one, or the peak of all
// column category: string — parameters, gradients, optimizer_state, activations …
// column bytes: integer [bytes] — held then by one rank
// column share: float [ratio] — of all that is held then
MATCH (:Instance {id: $instance})-[:HAS_CLASS]->(c:RankClass)-[:HAS_MEMORY]->(:Memory)-[:HAS_LEVEL]->(n:MemoryLevel)
WITH c.class AS class, n.moment AS moment, sum(n.bytes) AS total, collect(n) AS rows
UNWIND rows AS n
RETURN class, moment, n.category AS category, n.bytes AS bytes, toFloat(n.bytes) / total AS share
ORDER BY class, moment, bytes DESC, category
