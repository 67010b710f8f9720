// The number of relationships in the store.
//
// mode: reads
// column edges: integer — all of them, those of every type
MATCH ()-[r]->()
RETURN count(r) AS edges
