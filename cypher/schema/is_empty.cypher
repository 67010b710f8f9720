// Whether the database is empty. It reads one node at most, of any label.
//
// mode: reads
// column empty: boolean — no node of any label
MATCH (n)
WITH n LIMIT 1
RETURN count(n) = 0 AS empty
