// Rank nodes by arithmetic: coordinates from degree and stride of each mesh axis, groups from their closed form. It
// creates none if another process has taken over the instance: no constraint would prevent duplicate ranks.
//
// mode: writes
// param instance: string — the instance's id
// param owner: string — who builds it
// param axes: map — for each mesh axis, and ep: size, stride
// param groups: map — for each axis that has groups: first (id), stride, span (stride times size)
// param classes: integer[] — the class of each stage and coordinates on cp and ep, that of ep counted first
// param rows: map[] — a range of ranks: first, last
MATCH (:Instance {id: $instance, owner: $owner})
UNWIND $rows AS row
UNWIND range(row.first, row.last) AS r
WITH r, r / $axes.tp.stride % $axes.tp.size AS tp, r / $axes.cp.stride % $axes.cp.size AS cp,
  r / $axes.dp.stride % $axes.dp.size AS dp, r / $axes.ep.stride % $axes.ep.size AS ep,
  r / $axes.pp.stride % $axes.pp.size AS pp
CREATE (:Rank {
  id: $instance + '/' + toString(r), instance: $instance, `rank`: r,
  tp: tp, cp: cp, dp: dp, ep: ep, pp: pp, class: $classes[(pp * $axes.cp.size + cp) * $axes.ep.size + ep],
  group_tp: $groups.tp.first + r / $groups.tp.span * $groups.tp.stride + r % $groups.tp.stride,
  group_kv: $groups.kv.first + r / $groups.kv.span * $groups.kv.stride + r % $groups.kv.stride,
  group_cp: $groups.cp.first + r / $groups.cp.span * $groups.cp.stride + r % $groups.cp.stride,
  group_cpr: $groups.cpr.first + r / $groups.cpr.span * $groups.cpr.stride + r % $groups.cpr.stride,
  group_cpa: $groups.cpa.first + r / $groups.cpa.span * $groups.cpa.stride + r % $groups.cpa.stride,
  group_data: $groups.data.first + r / $groups.data.span * $groups.data.stride + r % $groups.data.stride,
  group_dp: $groups.dp.first + r / $groups.dp.span * $groups.dp.stride + r % $groups.dp.stride,
  group_ep: $groups.ep.first + r / $groups.ep.span * $groups.ep.stride + r % $groups.ep.stride,
  group_edp: $groups.edp.first + r / $groups.edp.span * $groups.edp.stride + r % $groups.edp.stride,
  group_dp_replicate: $groups.dp_replicate.first
    + r / $groups.dp_replicate.span * $groups.dp_replicate.stride + r % $groups.dp_replicate.stride,
  group_embedding: CASE
    WHEN pp = 0 OR pp = $axes.pp.size - 1
      THEN $groups.embedding.first + r / $groups.embedding.span * $groups.embedding.stride
        + r % $groups.embedding.stride
  END
})
