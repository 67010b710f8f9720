// Delete candidates that a search had when it was stopped, and has no more at its end.
//
// mode: writes
// param rows: map[] — id
UNWIND $rows AS row
MATCH (c:Candidate {id: row.id})
DETACH DELETE c
