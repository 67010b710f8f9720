// The steps of a profile's lanes. They may be written again: the same content has the same ids.
//
// mode: writes
// param rows: map[] — id; values: all other properties
UNWIND $rows AS row
MERGE (n:LaneTime {id: row.id})
SET n += row.values
