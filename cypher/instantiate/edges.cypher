// Copy the edges whose target's block stands at a position, from wherever their source stands (`hop`).
// An end that the stage does not have is not found by its id, and the edge falls away.
//
// mode: writes
// param graph: string — the graph's id
// param values: map[] — for each variant, the value of every expression that a present op or edge holds
// param rows: map[] — places of blocks, as in `compute`
UNWIND $rows AS row
MATCH (y:SymOp {graph: $graph, block: row.block})<-[d:DEP]-(x:SymOp)
WHERE (d.present IS NULL OR $values[row.variant][d.present] > 0)
  AND ((y.times IS NULL AND row.step IS NULL)
    OR (y.times IS NOT NULL AND (row.step = 0 OR (x.times IS NOT NULL AND row.step > 0))))
WITH row, d, x, y,
  CASE d.hop
    WHEN 'same' THEN row.here
    WHEN 'turn' THEN row.here
    WHEN 'previous' THEN row.before
    WHEN 'next' THEN row.after
    ELSE row.standing[x.block]
  END AS there,
  CASE WHEN x.times IS NULL THEN '' WHEN y.times IS NULL THEN row.last_mark WHEN d.hop = 'turn' THEN row.before_mark
    ELSE row.mark END AS turn
MATCH (a:Op {id: there + x.name + turn})
MATCH (b:Op {id: row.here + y.name + row.mark})
MERGE (a)-[:DEP {kind: d.kind}]->(b)
