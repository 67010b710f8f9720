// What a name means now. No row if nobody set it.
//
// mode: reads
// param name: string — the name's id
// column id: string — the id of the instance or profile
MATCH (:Name {id: $name})-[:NAMES]->(n:Instance|Profile)
RETURN n.id AS id
