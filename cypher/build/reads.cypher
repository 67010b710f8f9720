// Connect symbolic ops to the tensors that they read. An op may read a tensor twice, in two slots.
//
// mode: writes
// param rows: map[] — op and tensor: their ids; slot
UNWIND $rows AS row
MATCH (o:SymOp {id: row.op})
MATCH (t:SymTensor {id: row.tensor})
MERGE (t)<-[:READS {slot: row.slot}]-(o)
