// What changes when the profile with this id is deleted or made again, or its instance and graph.
// No row if there is none.
//
// mode: reads
// param id: string — the profile's id
// column state: string? — ready, building, deleting or outdated
// column made: string[] — state and builder of each
MATCH (n:Profile {id: $id})
OPTIONAL MATCH (n)-[:OF]->(of:Instance)
OPTIONAL MATCH (of)-[:OF]->(base:Graph)
RETURN n.state AS state, [n.state, n.builder, of.state, of.builder, base.state, base.builder] AS made
