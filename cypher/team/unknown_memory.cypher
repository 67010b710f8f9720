// Profiles without scaled durations whose memory is not known, as an older stagedb made them.
//
// mode: reads
// param model: string? — the model's name; null: any
// param system: string? — the system's name; null: any
// param words: map — words of the plan and their values, as properties of `Instance`
// column id: string — the profile's id
// column instance: string — the instance's id
// column system: string — the system's name
MATCH (p:Profile {state: 'ready'})-[:OF]->(i:Instance {state: 'ready'})-[:OF]->(g:Graph)
WHERE p.memory IS NULL AND ($system IS NULL OR p.system = $system) AND ($model IS NULL OR g.name = $model)
  AND size(p.scalings) = 0 AND all(word IN keys($words) WHERE i[word] = $words[word])
RETURN p.id AS id, i.id AS instance, p.system AS system
ORDER BY id
