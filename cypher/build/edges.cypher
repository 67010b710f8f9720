// Connect symbolic ops that wait for each other. Two ops may have several edges, of different kind, hop or condition.
//
// mode: writes
// param rows: map[] — source and target: ids of ops; number: its place in the graph; kind, hop, present
UNWIND $rows AS row
MATCH (a:SymOp {id: row.source})
MATCH (b:SymOp {id: row.target})
MERGE (a)-[d:DEP {number: row.number}]->(b)
SET d.kind = row.kind, d.hop = row.hop, d.present = row.present
