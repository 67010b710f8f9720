// The edges between the ops of a graph, in the graph's order.
//
// mode: reads
// param id: string — the graph's id
// column number: integer — its place in the graph
// column source: string — name of the op that runs first
// column target: string — name of the op that waits
// column kind: string — data, program or limit
// column hop: string — where the source is: same, turn, previous, next or block
// column present: string? — it exists where this expression is above 0
MATCH (:Graph {id: $id})-[:HAS_OP]->(a:SymOp)-[d:DEP]->(b:SymOp)
RETURN d.number AS number, a.name AS source, b.name AS target, d.kind AS kind, d.hop AS hop, d.present AS present
ORDER BY number
