// Join recorded ops to the planned ops that they are. One that is joined already stays as it is.
//
// mode: writes
// param match: string — the match's id
// param rows: map[] — a pair: seen (id of the RunOp), planned (id of the Op), changed
UNWIND $rows AS row
MATCH (o:RunOp {id: row.seen})
MATCH (p:Op {id: row.planned})
MERGE (o)-[m:MATCHES {match: $match}]->(p)
SET m.changed = row.changed
