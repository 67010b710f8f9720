// Write new candidates of a search.
//
// mode: writes
// param search: string — the search's id
// param rows: map[] — id; values: the other properties
UNWIND $rows AS row
MATCH (s:Search {id: $search})
CREATE (s)-[:TRIED]->(c:Candidate {id: row.id})
SET c += row.values
