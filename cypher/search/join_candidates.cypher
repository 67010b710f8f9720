// Join an instance to the candidates of searches whose plan it has.
//
// mode: writes
// param instance: string — the instance's id
MATCH (i:Instance {id: $instance, state: 'ready'})
MATCH (c:Candidate {instance: $instance})
MERGE (c)-[:MADE]->(i)
