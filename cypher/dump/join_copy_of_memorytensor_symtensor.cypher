// Write COPY_OF relationships from MemoryTensor to SymTensor nodes.
//
// mode: writes
// param rows: map[] — source, target: ids; values: properties
UNWIND $rows AS row
MATCH (a:MemoryTensor {id: row.source})
MATCH (b:SymTensor {id: row.target})
CREATE (a)-[r:COPY_OF]->(b)
SET r += row.values
