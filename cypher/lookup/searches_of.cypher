// The complete searches that tried the plan of an instance, the newest first.
//
// mode: reads
// param instance: string — the instance's id
// column id: string — the search's id
// column place: integer — place of the plan in it, from 0
// column size: integer — plans whose degrees divide
// column timed: integer — plans that were timed
// column covered: boolean — every plan was tried or ruled out by a bound
// column by: string — what is best
MATCH (i:Instance {id: $instance})<-[:MADE]-(c:Candidate)<-[:TRIED]-(s:Search {state: 'ready'})
WHERE c.place IS NOT NULL
RETURN s.id AS id, c.place AS place, s.size AS size, s.timed AS timed, s.covered AS covered, s.by AS by
ORDER BY s.created DESC, id
