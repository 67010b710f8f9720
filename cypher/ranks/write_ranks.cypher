// Write the next rank nodes of an instance by arithmetic: coordinates from degree and stride of each mesh axis, groups
// from their closed form. The first SET takes the lock of the instance. No node if it is not complete, or if another
// process has written these meanwhile: no constraint would prevent duplicate ranks.
//
// mode: writes
// param instance: string — the instance's id
// param owner: string — who writes
// param first: integer — the first of these ranks, and the number of those that are written
// param last: integer — the last one
// param axes: map — for each mesh axis, and ep: size, stride
// param groups: map — for each axis that has groups: first (id), stride, span (stride times size)
// param classes: map — numbers: the class of each stage and coordinates on cp, ep and dp, that of dp counted first; cp, ep, dp: how many coordinates these have
// column written: integer — ranks that were written
MATCH (i:Instance {id: $instance})
SET i.claim = $owner
WITH i
WHERE i.state = 'ready' AND i.ranks_written = $first
SET i.ranks_written = $last + 1
WITH i
UNWIND range($first, $last) AS r
WITH r, r / $axes.tp.stride % $axes.tp.size AS tp, r / $axes.cp.stride % $axes.cp.size AS cp,
  r / $axes.dp.stride % $axes.dp.size AS dp, r / $axes.ep.stride % $axes.ep.size AS ep,
  r / $axes.pp.stride % $axes.pp.size AS pp
CREATE (:Rank {
  id: $instance + '/' + toString(r), instance: $instance, `rank`: r,
  tp: tp, cp: cp, dp: dp, ep: ep, pp: pp,
  class: $classes.numbers[
    ((pp * $classes.cp + cp % $classes.cp) * $classes.ep + ep % $classes.ep) * $classes.dp + dp % $classes.dp],
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
  group_dp_reshard: $groups.dp_reshard.first
    + r / $groups.dp_reshard.span * $groups.dp_reshard.stride + r % $groups.dp_reshard.stride,
  group_embedding: CASE
    WHEN pp = 0 OR pp = $axes.pp.size - 1
      THEN $groups.embedding.first + r / $groups.embedding.span * $groups.embedding.stride
        + r % $groups.embedding.stride
  END
})
RETURN count(*) AS written
