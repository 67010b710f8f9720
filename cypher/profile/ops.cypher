// What tells the ops of a rank class from each other in a model, as columns, in which each op has the same place.
//
// mode: reads
// param instance: string — the instance's id
// param class: integer — the rank class
// column id: string[] — ids of the ops
// column chunk: integer[] — virtual stage of each
// column template: string[] — forward, input_gradient, weight_gradient or step
// column order: integer[] — issue order inside the task
// column block: string[] — blocks of the symbolic ops
// column layer: integer[] — layers, counted over the chunks of the stage; -1 outside layers
MATCH (o:Op {instance: $instance, class: $class})
USING INDEX SEEK o:Op(instance, class)
RETURN collect(o.id) AS id, collect(o.chunk) AS chunk, collect(o.template) AS template,
  collect(o.`order`) AS `order`, collect(coalesce(o.block, '')) AS block, collect(coalesce(o.layer, -1)) AS layer
