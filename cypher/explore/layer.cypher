// The operators of one layer of a rank class as a graph, in the order in which they are issued.
//
// mode: reads
// param instance: string — id of the instance
// param class: integer — number of the rank class
// param layer: integer — layer, counted over the chunks of the stage, from 0
// column op: map — an operator
MATCH (:Instance {id: $instance})-[:HAS_CLASS]->(:RankClass {class: $class})-[:RUNS]->(o:Op)
WHERE o.layer = $layer
RETURN o AS op
ORDER BY o.index LIMIT 250
