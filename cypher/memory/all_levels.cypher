// Bytes by category of an instance's rank classes at the moments of a step.
//
// mode: reads
// param instance: string — the instance's id
// column class: integer — the rank class
// column moment: string — the end of a phase, or the peak within one
// column category: string — what the bytes are
// column bytes: integer [bytes] — held at that moment
MATCH (:Instance {id: $instance})-[:HAS_CLASS]->(:RankClass)-[:HAS_MEMORY]->(:Memory)-[:HAS_LEVEL]->(n:MemoryLevel)
RETURN n.class AS class, n.moment AS moment, n.category AS category, n.bytes AS bytes
ORDER BY class, moment, category
