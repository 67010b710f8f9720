// Write Rank nodes, each joined to the node that it belongs to.
//
// mode: writes
// param rows: map[] — id; parent: the id of that node; values: all properties
UNWIND $rows AS row
CREATE (n:Rank {id: row.id})
SET n += row.values
