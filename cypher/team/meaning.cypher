// What a name means now. No row if nobody set it.
//
// mode: reads
// param name: string — the name's id
// column id: string — the id of the instance, profile or run
// column origin: string? — the dump that the name came from; null if somebody set it here
MATCH (m:Name {id: $name})-[:NAMES]->(n:Instance|Profile|Run)
RETURN n.id AS id, m.origin AS origin
