// The complete instances some of whose ranks or groups have no node yet.
//
// mode: reads
// column id: string — the instance's id
// column world: integer [ranks] — its ranks
MATCH (i:Instance {state: 'ready'})
WHERE i.class_table IS NOT NULL
WITH i, reduce(count = 0, each IN i.group_counts | count + each) AS groups
WHERE coalesce(i.ranks_written, 0) < i.world OR coalesce(i.groups_written, 0) < groups
RETURN i.id AS id, i.world AS world
ORDER BY id
