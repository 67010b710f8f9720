// The best plans of complete searches. No row for one in which no plan fits.
//
// mode: reads
// param searches: string[] — ids of searches
// column search: string — the search's id
// column request: string — all that was asked, as JSON
// column values: map — the properties of its best candidate
UNWIND $searches AS id
MATCH (s:Search {id: id, state: 'ready'})
WHERE s.step IS NOT NULL
MATCH (s)-[:TRIED]->(c:Candidate {place: 0})
RETURN id AS search, s.request AS request, properties(c) AS values
ORDER BY search
