// What makes the layers of rank classes numbers of the model.
//
// mode: reads
// param instance: string — the instance's id
// column class: integer — number of the class
// column stages: integer[] — pipeline stages in it
// column first_layers: integer[] — of each of these stages, chunk after chunk: what is added to its layers' numbers
MATCH (c:RankClass {instance: $instance})
RETURN c.class AS class, c.stages AS stages, c.first_layers AS first_layers
ORDER BY class
