// Copy the edges whose target's block is at a position, from the place of their source (`hop`). If the stage does not
// have one end, the look-up by id finds no op, and the edge is left out. From outside a loop an edge leads to the first
// turn that has the target. Out of a loop it leads from the last turn that has the source.
// A place also has: step (its turn, from 0; null in places outside loops), turns (step and variant of each), before and
// after (how ids begin at the neighbouring positions), single (the same for blocks that the stage has once),
// before_mark (the end of the ids of the turn before).
//
// mode: writes
// param graph: string — the graph's id
// param values: map[] — for each variant, the value of every expression that a present op or edge holds
// param rows: map[] — places of blocks, as in `copy_ops`
UNWIND $rows AS row
MATCH (y:SymOp {graph: $graph, block: row.block})<-[d:DEP]-(x:SymOp)
WHERE (d.present IS NULL OR $values[row.variant][d.present] > 0)
WITH row, d, x, y, x.loop = y.loop AND x.block = y.block AND d.hop IN ['same', 'turn'] AS together
WHERE (y.times IS NULL AND row.step IS NULL)
  OR (y.times IS NOT NULL AND row.step IS NOT NULL
    AND (together
      OR row.step = head([t IN row.turns WHERE y.present IS NULL OR $values[t.variant][y.present] > 0 | t.step])))
WITH row, d, x, y,
  CASE d.hop
    WHEN 'same' THEN row.here
    WHEN 'turn' THEN row.here
    WHEN 'previous' THEN row.before
    WHEN 'next' THEN row.after
    ELSE row.single[x.block]
  END AS there,
  CASE
    WHEN x.times IS NULL THEN ''
    WHEN d.hop = 'turn' THEN row.before_mark
    WHEN together THEN row.mark
    ELSE '.' + toString(last([t IN row.turns WHERE x.present IS NULL OR $values[t.variant][x.present] > 0 | t.step]))
  END AS turn
MATCH (a:Op {id: there + x.name + turn})
MATCH (b:Op {id: row.here + y.name + row.mark})
MERGE (a)-[:DEP {kind: d.kind}]->(b)
