// Write the ops of a profile's lanes: their properties come from the instance's ops, their times from columns.
//
// mode: writes
// param rows: map[] — some ops of a lane: lane (id of the lane), first (index of the first one), and of each op in lists: ops (its id), layer (in the model), duration, count, total, exposed, slack, critical, times_critical, rule, dimension, wires, wire_bytes
UNWIND $rows AS row
MATCH (l:LaneTime {id: row.lane})
UNWIND range(0, size(row.ops) - 1) AS at
MATCH (o:Op {id: row.ops[at]})
CREATE (l)-[:HAS_OP_TIME]->(:OpTime {
  id: row.lane + '/' + toString(o.index), profile: l.profile, lane: l.lane, class: l.class, stage: l.stage,
  `rank`: l.`rank`, ranks: l.ranks, instance: o.instance, op: o.id, index: o.index, name: o.name, type: o.type,
  kind: o.kind, phase: o.phase, axis: o.axis, block: o.block, layer: row.layer[at], chunk: o.chunk, dtype: o.dtype,
  flops: o.flops, bytes: o.bytes_read + o.bytes_written, message: coalesce(o.comm_bytes, 0),
  duration: row.duration[at], count: row.count[at], total: row.total[at], exposed: row.exposed[at],
  slack: row.slack[at], critical: row.critical[at], times_critical: row.times_critical[at], rule: row.rule[at],
  dimension: row.dimension[at], wires: row.wires[at], wire_bytes: row.wire_bytes[at]
})-[:OF]->(o)
