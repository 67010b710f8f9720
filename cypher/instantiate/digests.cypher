// Give rank classes the digests of their ops, edges and tasks.
//
// mode: writes
// param rows: map[] — a class: id, ops_digest, edges_digest, tasks_digest
UNWIND $rows AS row
MATCH (c:RankClass {id: row.id})
SET c.ops_digest = row.ops_digest, c.edges_digest = row.edges_digest, c.tasks_digest = row.tasks_digest
