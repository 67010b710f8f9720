// The edges of a rank class as columns. An end is told by the four things that find an op in its class, in one integer:
// (chunk * 4 + part) * 2^40 + order, where part is 0 for the forward, 1 for both gradients, 2 for the step.
// The target has no label, so that no planner begins with an index of all targets: an op's edges lead to ops alone.
//
// mode: reads
// param instance: string — the instance's id
// param class: integer — the rank class
// column source: integer[] — the op that runs first
// column target: integer[] — the op that waits
// column kind: string[] — data, program or limit
MATCH (a:Op {instance: $instance, class: $class})
USING INDEX SEEK a:Op(instance, class)
WITH a
MATCH (a)-[d:DEP]->(b)
RETURN
  collect(
    (a.chunk * 4 + CASE a.template WHEN 'forward' THEN 0 WHEN 'step' THEN 2 ELSE 1 END) * 1099511627776 + a.`order`
  ) AS source,
  collect(
    (b.chunk * 4 + CASE b.template WHEN 'forward' THEN 0 WHEN 'step' THEN 2 ELSE 1 END) * 1099511627776 + b.`order`
  ) AS target,
  collect(d.kind) AS kind
