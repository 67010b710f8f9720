// Instances of a store that an older stagedb wrote, the newest first: to make them again elsewhere.
//
// mode: reads
// param most: integer — the most rows
// column name: string? — its name, given by the user
// column model: string? — the name of its model
// column plan: string? — the plan's words, as JSON
MATCH (i:Instance)
OPTIONAL MATCH (g:Graph {id: i.graph})
RETURN i.name AS name, g.name AS model, i.plan AS plan
ORDER BY coalesce(i.created, 0) DESC, i.id
LIMIT $most
