// Change candidates: what they have at the end of a search, when the best plan is known.
//
// mode: writes
// param rows: map[] — id; values: all properties that it has from then on
UNWIND $rows AS row
MATCH (c:Candidate {id: row.id})
SET c = row.values
