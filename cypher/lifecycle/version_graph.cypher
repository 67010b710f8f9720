// What changes when the graph with this id is deleted or made again.
// No row if there is none.
//
// mode: reads
// param id: string — the graph's id
// column state: string? — ready, building, deleting or outdated
// column made: string[] — state and builder of each
MATCH (n:Graph {id: $id})
RETURN n.state AS state, [n.state, n.builder] AS made
