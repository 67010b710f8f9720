// The durations of the ops of a rank class in a profile: a row for each lane, with parallel lists over the ops.
//
// mode: reads
// param profile: string — the profile's id
// param class: integer — the rank class
// column lane: integer — number of the lane
// column rank: integer — the smallest rank of the lane
// column ranks: integer [ranks] — ranks of the lane
// column op: integer[] — places of the ops in the class
// column name: string[] — their names
// column duration: integer[] [ns] — of one run; 0 of what receives
MATCH (:Profile {id: $profile})-[:HAS_LANE]->(l:LaneTime {class: $class})-[:HAS_OP_TIME]->(t:OpTime)
RETURN l.lane AS lane, l.`rank` AS `rank`, l.ranks AS ranks, collect(t.index) AS op, collect(t.name) AS name,
  collect(t.duration) AS duration
ORDER BY lane
