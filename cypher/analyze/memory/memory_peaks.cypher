// Where the memory of each rank class peaks: the task and the operator that run at the peak. `stagedb memory` computes it.
//
// mode: reads
// param instance: string — id of the instance
// column class: integer — the rank class
// column stages: integer[] — its pipeline stages
// column ranks: integer — ranks of the class
// column peak: integer [B] — the most bytes that a rank holds at once
// column task: string — forward, backward, input_gradient, weight_gradient or step
// column microbatch: integer? — which micro-batch; null for the step
// column chunk: integer — part of the stage, if the stage holds several
// column operator: string? — the symbolic operator; null if the peak is at the end of a task
// column kind: string? — matmul, attention, all_gather …
// column layer: integer? — layer of that operator, counted from the start of its stage; null outside layers
// column temporary: integer? [B] — part of the peak that this operator frees when it ends
// keep: class, peak, operator, task, microbatch, ranks
MATCH (:Instance {id: $instance})-[:HAS_CLASS]->(c:RankClass)-[:HAS_MEMORY]->(m:Memory)-[:PEAKS_IN]->(k:Task)
OPTIONAL MATCH (m)-[:PEAKS_AT]->(o:Op)-[:COPY_OF]->(s:SymOp)
RETURN c.class AS class, c.stages AS stages, c.ranks AS ranks, m.peak AS peak, k.kind AS task,
  k.microbatch AS microbatch, k.chunk AS chunk, s.name AS operator, o.kind AS kind, o.layer AS layer,
  o.temporary AS temporary
ORDER BY peak DESC, class
