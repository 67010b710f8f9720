// What changes when the instance with this id is deleted or made again, or its graph.
// No row if there is none.
//
// mode: reads
// param id: string — the instance's id
// column state: string? — ready, building, deleting or outdated
// column made: string[] — state and builder of each
MATCH (n:Instance {id: $id})
OPTIONAL MATCH (n)-[:OF]->(of:Graph)
RETURN n.state AS state, [n.state, n.builder, of.state, of.builder] AS made
