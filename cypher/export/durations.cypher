// How long the ops of a rank class take in a profile: a row a lane, of lists in which each op has the same place.
//
// mode: reads
// param profile: string — the profile's id
// param class: integer — the rank class
// column lane: integer — number of the lane
// column rank: integer — the smallest rank of the lane
// column ranks: integer [ranks] — ranks of the lane
// column op: integer[] — places of the ops in the class, which their ids end with
// column name: string[] — their names
// column duration: integer[] [ns] — of one run; 0 of what receives
MATCH (t:OpTime {profile: $profile, class: $class})
USING INDEX SEEK t:OpTime(profile, class)
RETURN t.lane AS lane, t.`rank` AS `rank`, t.ranks AS ranks, collect(toInteger(split(t.id, '/')[2])) AS op,
  collect(t.name) AS name, collect(t.duration) AS duration
ORDER BY lane
