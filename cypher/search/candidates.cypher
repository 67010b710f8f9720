// The candidates of a search, finished or not, the best first; those of one that is not finished in any order.
//
// mode: reads
// param search: string — the search's id
// column values: map — the properties of a candidate
MATCH (:Search {id: $search})-[:TRIED]->(c:Candidate)
RETURN properties(c) AS values
ORDER BY c.place, c.id
