// All complete instances whose plans have the given words, with the words that lists show, the newest first.
//
// mode: reads
// param words: map — words of the plan and their values, as properties of `Instance`; empty: any plan
// column id: string — the instance's id
// column name: string — what it is called where nobody names it
// column model: string — name of the model
// column plan: string — the plan's words, as JSON
// column ranks: integer — size of the world
// column classes: integer — number of rank classes
// column tp: integer — ranks that share each layer
// column pp: integer — pipeline stages
// column cp: integer — ranks that share a sequence
// column ep: integer — ranks that share the experts
// column dp: integer — ranks with different data
// column zero: integer — what is sharded over dp
// column micro_batch_size: integer — sequences of one micro-batch on a data-parallel rank
// column global_batch_size: integer — sequences of one step
// column seq_len: integer — tokens of a sequence
// column schedule: string — order of micro-batches on the stages
// column recompute: string — what a layer's backward computes again
// column created: integer [ms] — when it was made, since 1970 (UTC)
// column builder: string? — the process that made it
// column claim: string? — the process that last asked for it
MATCH (i:Instance {state: 'ready'})-[:OF]->(g:Graph)
WHERE all(word IN keys($words) WHERE i[word] = $words[word])
MATCH (i)-[:HAS_CLASS]->(c:RankClass)
WITH i, g, count(c) AS classes
RETURN i.id AS id, i.name AS name, g.name AS model, i.plan AS plan, i.world AS ranks, classes, i.tp AS tp, i.pp AS pp,
  i.cp AS cp, i.ep AS ep, i.dp AS dp, i.zero AS zero, i.micro_batch_size AS micro_batch_size,
  i.global_batch_size AS global_batch_size, i.seq_len AS seq_len, i.schedule AS schedule, i.recompute AS recompute,
  i.created AS created, i.builder AS builder, i.claim AS claim
ORDER BY created DESC, id
