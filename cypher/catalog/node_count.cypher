// The number of nodes in the store.
//
// mode: reads
// column nodes: integer — all of them, those of every kind
MATCH (n)
RETURN count(n) AS nodes
