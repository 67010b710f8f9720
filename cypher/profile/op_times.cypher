// Ops in the steps of a profile's lanes, each with an edge to its op. They may be written again.
//
// mode: writes
// param rows: map[] — id; of: the op's id; values: all other properties
UNWIND $rows AS row
MATCH (o:Op {id: row.of})
MERGE (n:OpTime {id: row.id})
SET n += row.values
MERGE (n)-[:OF]->(o)
