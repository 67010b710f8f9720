// When the tasks of a rank class run: on the first of its lanes.
//
// mode: reads
// param profile: string — id of the profile
// param class: integer — number of the rank class
// column index: integer — place in the class's schedule
// column start: integer [ns] — when its first op begins
// column finish: integer [ns] — when its last op ends
MATCH (:Profile {id: $profile})-[:HAS_LANE]->(l:LaneTime {class: $class})
WITH l ORDER BY l.lane LIMIT 1
MATCH (l)-[:HAS_TASK_TIME]->(k:TaskTime)
RETURN k.index AS index, k.start AS start, k.finish AS finish
ORDER BY index
