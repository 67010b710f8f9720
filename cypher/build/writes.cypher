// Connect symbolic ops to the tensors that they write. An op may write a tensor twice, in two slots.
//
// mode: writes
// param rows: map[] — op and tensor: their ids; slot
UNWIND $rows AS row
MATCH (o:SymOp {id: row.op})
MATCH (t:SymTensor {id: row.tensor})
MERGE (t)<-[:WRITES {slot: row.slot}]-(o)
