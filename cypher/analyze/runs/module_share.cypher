// How much of the time of a run's ops is of modules: launched by one, or reducing gradients of its weights. The
// optimizer, the loss and communication of no module are rows of their own. Modules are recorded with Python's calls
// (`with_stack`).
//
// mode: reads
// param run: string — id of the run
// column part: string — module, gradients (reduced in buckets), optimizer, loss, communication or other
// column ops: integer — how many, on all lanes
// column time: integer [ns] — of a rank in the mean
// column waited: integer? [ns] — part of it in which they wait for other recorded ranks; null: one rank was recorded
// column share: float [ratio] — share of the time of all ops
// column working: float? [ratio] — share of the time of all ops, what they wait left out; null: waits are not known
// column computing: float? [ratio] — share of the time of ops that compute or copy; null: none of them does
// keep: part, share, working, computing, time, waited, ops
MATCH (r:Run {id: $run})-[:HAS_LANE]->(l:RunLane)-[:HAS_OP_TIME]->(o:RunOp)
OPTIONAL MATCH (c:RunCollective)-[m:HAS_MEMBER]->(o)
WITH r.world AS world, o, l.ranks AS ranks, sum(m.waits) AS waits, max(size(c.members)) AS members
WITH world, o.duration * ranks AS ns, waits, members, o.type IN ['compute', 'copy'] AS computes,
  CASE
    WHEN o.modules IS NOT NULL THEN 'gradients'
    WHEN o.module IS NOT NULL THEN 'module'
    WHEN o.phase = 'optimizer' OR o.phase = 'unknown' AND o.kind = 'optimizer' THEN 'optimizer'
    WHEN NOT o.type IN ['compute', 'copy'] THEN 'communication'
    WHEN toLower(o.launcher) CONTAINS 'loss' THEN 'loss'
    ELSE 'other'
  END AS part
WITH world, part, count(*) AS ops, sum(ns) AS ns, sum(waits) AS waits, max(members) AS members,
  sum(CASE WHEN computes THEN ns ELSE 0 END) AS computing
WITH collect({part: part, ops: ops, ns: ns, waits: waits, computing: computing}) AS rows, world, sum(ns) AS total,
  sum(waits) AS waited, sum(computing) AS computed, coalesce(max(members), 0) > 1 AS known
UNWIND rows AS row
RETURN row.part AS part, row.ops AS ops, row.ns / world AS time, CASE WHEN known THEN row.waits / world END AS waited,
  CASE WHEN total > 0 THEN toFloat(row.ns) / total ELSE 0.0 END AS share,
  CASE WHEN known AND total > waited THEN toFloat(row.ns - row.waits) / (total - waited) END AS working,
  CASE WHEN row.computing > 0 THEN toFloat(row.computing) / computed END AS computing
ORDER BY time DESC, part
