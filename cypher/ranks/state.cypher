// What a complete instance keeps of its ranks and groups, and how many of their nodes are written.
//
// mode: reads
// param instance: string — the instance's id
// column name: string — what it was called
// column plan: string — the plan's words, as JSON
// column world: integer [ranks] — size of the world
// column class_table: integer[]? — the class of each place; absent in instances of an older stagedb, which have all nodes
// column class_cp: integer? — coordinates on cp in the table
// column class_ep: integer? — coordinates on ep in the table
// column class_dp: integer? — coordinates on dp in the table, if more than one
// column group_axes: string[]? — mesh axes with groups
// column group_firsts: integer[]? — for each axis the id of its first group
// column group_counts: integer[]? — number of its groups
// column group_sizes: integer[]? — ranks of the axis
// column group_strides: integer[]? — distance of these ranks
// column group_members: integer[]? — ranks of a group
// column group_steps: integer[]? — distance of a group's ranks
// column ranks_written: integer — ranks that have a node
// column groups_written: integer — groups that have one
MATCH (i:Instance {id: $instance, state: 'ready'})
RETURN i.name AS name, i.plan AS plan, i.world AS world, i.class_table AS class_table, i.class_cp AS class_cp,
  i.class_ep AS class_ep, i.class_dp AS class_dp, i.group_axes AS group_axes, i.group_firsts AS group_firsts,
  i.group_counts AS group_counts, i.group_sizes AS group_sizes, i.group_strides AS group_strides,
  i.group_members AS group_members, i.group_steps AS group_steps, coalesce(i.ranks_written, 0) AS ranks_written,
  coalesce(i.groups_written, 0) AS groups_written
