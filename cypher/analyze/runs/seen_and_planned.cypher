// Recorded times of the ops of a run next to those of the profiles of the instance that it was matched with: by what
// the ops are and by phase, the mean of the recorded ranks. Ratios above 1 are slower than predicted.
//
// mode: reads
// param run: string — id of the run
// column system: string — system of the profile
// column kind: string — matmul, attention, all_gather …
// column phase: string — forward, backward, recompute or optimizer
// column calls: integer — recorded ops
// column seen: integer [ns] — their time, a call on average
// column predicted: integer [ns] — the profile's time of a call on average
// column ratio: float? [ratio] — seen time a predicted one
MATCH (:Run {id: $run})-[:HAS_MATCH]->(m:Match)-[:AGAINST]->(:Instance)<-[:OF]-(t:Profile {state: 'ready'})
MATCH (t)-[:HAS_LANE]->(:LaneTime)-[:HAS_OP_TIME]->(e:OpTime)-[:OF]->(p:Op)<-[x:MATCHES {match: m.id}]-(o:RunOp)
WITH t, p, o, avg(e.duration) AS predicted
WITH t.system AS system, p.kind AS kind, p.phase AS phase, count(o) AS calls, avg(o.duration) AS seen,
  avg(predicted) AS predicted
RETURN system, kind, phase, calls, toInteger(seen) AS seen, toInteger(predicted) AS predicted,
  CASE WHEN predicted > 0 THEN seen / predicted ELSE null END AS ratio
ORDER BY system, calls * seen DESC, kind, phase
