// How many ops each class of an instance has, and how many it should have.
//
// mode: reads
// param instance: string — the instance's id
// column class: integer — number of the class
// column ops: integer — those that it is to have
// column copied: integer — those that it has
MATCH (:Instance {id: $instance})-[:HAS_CLASS]->(c:RankClass)
OPTIONAL MATCH (c)-[:RUNS]->(o:Op)
RETURN c.class AS class, c.ops AS ops, count(o) AS copied
ORDER BY class
