// The memory of a rank at its peak and at the end of each phase, by category. `stagedb memory` computes it.
//
// mode: reads
// param instance: string — the instance's id
// column class: integer — the rank class
// column moment: string — start, the end of a phase, the peak within a phase, or the peak of the step
// column category: string — parameters, gradients, optimizer_state, activations …
// column bytes: integer [B] — bytes that one rank holds at that moment
// column share: float [ratio] — share of all bytes at that moment
MATCH (:Instance {id: $instance})-[:HAS_CLASS]->(c:RankClass)-[:HAS_MEMORY]->(:Memory)-[:HAS_LEVEL]->(n:MemoryLevel)
WITH c.class AS class, n.moment AS moment, sum(n.bytes) AS total, collect(n) AS rows
UNWIND rows AS n
RETURN class, moment, n.category AS category, n.bytes AS bytes, toFloat(n.bytes) / total AS share
ORDER BY class, moment, bytes DESC, category
