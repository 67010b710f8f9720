// A Note node and its neighbours: how many there are of each kind, and the first ones by id.
// No row if there is no such node, or if it is not complete.
//
// mode: reads
// param id: string — the node's id
// param limit: integer — at most so many neighbours of each kind
// column node: map — the node's properties
// column node_labels: string[] — its labels
// column type: string? — kind of edge; null for a node without neighbours
// column out: boolean? — the edge leads from the node to the neighbour
// column labels: string[]? — labels of these neighbours
// column count: integer — how many there are
// column members: map[] — properties of the first ones, and of their edges
MATCH (n:Note {id: $id})
OPTIONAL MATCH (n)-[r]-(m)
WHERE coalesce(m.state, 'ready') = 'ready'
WITH n, r, m
ORDER BY m.id
WITH n, type(r) AS type, startNode(r) = n AS out, labels(m) AS labels, count(m) AS count,
  collect({node: m, edge: r})[..$limit] AS some
RETURN properties(n) AS node, labels(n) AS node_labels, type, out, labels, count,
  [each IN some | {properties: properties(each.node), edge: properties(each.edge)}] AS members
ORDER BY type, out, labels
