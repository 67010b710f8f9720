// Join the candidates of a search to the instances of their plans that the store has.
//
// mode: writes
// param search: string — the search's id
MATCH (:Search {id: $search})-[:TRIED]->(c:Candidate)
WHERE c.instance IS NOT NULL
MATCH (i:Instance {id: c.instance, state: 'ready'})
MERGE (c)-[:MADE]->(i)
