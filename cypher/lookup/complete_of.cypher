// The ids of the complete instances that were made of a graph.
//
// mode: reads
// param graph: string — the graph's id
// column id: string — the instance's id
MATCH (i:Instance)-[:OF]->(:Graph {id: $graph})
WHERE i.state = 'ready'
RETURN i.id AS id
ORDER BY id
