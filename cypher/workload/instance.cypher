// The row of a complete instance; no row if the store has no complete instance of this id.
//
// mode: reads
// param instance: string — the instance's id
// column name: string — what it was called
// column graph: string — id of its graph
// column model: string — name of the model
// column plan: string — the plan's words, as JSON
// column world: integer [ranks] — size of the world
// column ranks_digest: string? — digest of the ranks that it was given; absent in instances from before schema 5
// column groups_digest: string? — digest of its groups
// column layout_digest: string? — digest of the numbers below
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
MATCH (i:Instance {id: $instance, state: 'ready'})-[:OF]->(g:Graph)
RETURN i.name AS name, i.graph AS graph, g.name AS model, i.plan AS plan, i.world AS world,
  i.ranks_digest AS ranks_digest, i.groups_digest AS groups_digest, i.layout_digest AS layout_digest,
  i.class_table AS class_table, i.class_cp AS class_cp, i.class_ep AS class_ep, i.class_dp AS class_dp,
  i.group_axes AS group_axes, i.group_firsts AS group_firsts, i.group_counts AS group_counts,
  i.group_sizes AS group_sizes, i.group_strides AS group_strides, i.group_members AS group_members,
  i.group_steps AS group_steps
