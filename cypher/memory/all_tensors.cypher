// The tensors that live at the peaks of an instance's rank classes, the largest first.
//
// mode: reads
// param instance: string — the instance's id
// column class: integer — the rank class
// column name: string — the tensor
// column layer: integer? — its layer, counted from the first of the stage
// column category: string — what it is
// column count: integer — how many of them are held
// column bytes: integer [bytes] — of all of them together
MATCH (:Instance {id: $instance})-[:HAS_CLASS]->(:RankClass)-[:HAS_MEMORY]->(:Memory)-[:HOLDS]->(n:MemoryTensor)
RETURN n.class AS class, n.name AS name, n.layer AS layer, n.category AS category, n.count AS count, n.bytes AS bytes
ORDER BY class, bytes DESC, name, layer, category
