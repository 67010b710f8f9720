// All complete profiles of a complete instance, the newest first.
//
// mode: reads
// param instance: string — the instance's id
// param user: string — the user who asks
// column id: string — digest of the instance's id, the system, measured durations, scalings and blocking axes
// column name: string? — what it is called where nobody names it
// column instance: string — id of its instance
// column instance_name: string — what that instance is called where nobody names it
// column instance_names: string[] — names of that instance, as space/name
// column system: string — the system's name
// column scalings: string[] — durations that were scaled
// column blocking: string[] — mesh axes whose communication a rank waits for
// column ranks: integer — size of the world
// column step: integer [ns] — length of the step
// column unscaled: integer [ns] — length of the step without the scalings
// column tokens_per_second: float? [tokens/s] — of all ranks
// column mfu: float? [ratio] — model FLOPs over what the peaks would do in the step
// column hfu: float? [ratio] — hardware FLOPs over the same, with recomputing
// column memory: integer? [B] — what its fullest rank holds at its peak; null if an older stagedb made it
// column room: integer? [B] — memory of one accelerator for tensors; null if it has no bound
// column measured_time: float [ratio] — share of the modelled time that was measured
// column created: integer [ms] — when it was made, since 1970 (UTC)
// column builder: string? — the process that made it
// column claim: string? — the process that last asked for it
// column names: string[] — its names, as space/name
// column tags: string[] — its tags
// column notes: string[] — texts of the notes about it
// column asked: integer? [ms] — when the user asked for it, since 1970 (UTC)
// column loaded: string[] — which names, tags and notes came with a dump, and from where
MATCH (i:Instance {id: $instance, state: 'ready'})<-[:OF]-(p:Profile {state: 'ready'})
OPTIONAL MATCH (l:Name)-[:NAMES]->(i)
WITH p, i, collect(l.space + '/' + l.name) AS instance_names
OPTIONAL MATCH (n:Name)-[:NAMES]->(p)
WITH p, i, instance_names, collect(n.space + '/' + n.name) AS names,
  collect('name ' + n.space + '/' + n.name + ' ' + n.origin) AS loaded_names
OPTIONAL MATCH (t:Tag)-[r:TAGS]->(p)
WITH p, i, instance_names, names, loaded_names, collect(t.id) AS tags,
  collect('tag ' + t.id + ' ' + r.origin) AS loaded_tags
OPTIONAL MATCH (m:Note)-[:ABOUT]->(p)
WITH p, i, instance_names, names, loaded_names, tags, loaded_tags, collect(m.text) AS notes,
  collect('note ' + substring(m.text, 0, 40) + ' ' + m.origin) AS loaded_notes
OPTIONAL MATCH (:User {id: $user})-[s:ASKED_FOR]->(p)
WITH p, i, instance_names, names, loaded_names, tags, loaded_tags, notes, loaded_notes, max(s.time) AS asked
RETURN p.id AS id, p.name AS name, p.instance AS instance, i.name AS instance_name, instance_names, p.system AS system,
  p.scalings AS scalings, coalesce(p.blocking, []) AS blocking, p.world AS ranks,
  p.step AS step, p.unscaled AS unscaled, p.tokens_per_second AS tokens_per_second, p.mfu AS mfu, p.hfu AS hfu,
  p.memory AS memory, p.room AS room, p.measured_time AS measured_time, p.created AS created,
  p.builder AS builder, p.claim AS claim, names, tags, notes, asked,
  loaded_names + loaded_tags + loaded_notes AS loaded
ORDER BY created DESC, id
