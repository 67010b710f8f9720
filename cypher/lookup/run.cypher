// The complete runs that a word may mean: by the start of their ids, by anybody's name, and by what they are called
// without one.
//
// mode: reads
// param word: string — the word
// param user: string — the user who asks
// column id: string — digest of its files
// column name: string? — what it is called where nobody names it
// column tool: string — what recorded it
// column world: integer [ranks] — ranks that were imported
// column job_ranks: integer [ranks] — ranks of the job
// column step: integer? [ns] — time from its first op to the end of its last one; null: the run has no times
// column steps: integer — steps that the profiler counted; 0: it counted none
// column ops: integer — ops of all imported ranks
// column devices: string[] — names of the accelerators
// column busy: integer? [ns] — computing or copying, the mean of the imported ranks; null: the run has no times
// column exposed: integer? [ns] — communicating while nothing is computed or copied, the mean of the imported ranks; null: the run has no times
// column unexplained: integer? [ns] — of the critical path: idle, though the launch is there; null: the run has no times
// column launching: integer? [ns] — of the critical path: idle until a launch; null: the run has no times
// column left_out: string[] — what of the files was not understood
// column created: integer [ms] — when it was imported, since 1970 (UTC)
// column builder: string? — the process that imported it
// column claim: string? — the process that last asked for it
// column names: string[] — its names, as space/name
// column tags: string[] — its tags
// column notes: string[] — texts of the notes about it
// column asked: integer? [ms] — when the user asked for it, since 1970 (UTC)
// column loaded: string[] — which names, tags and notes came with a dump, and from where
MATCH (a:Run)
WHERE size($word) >= 4 AND a.id STARTS WITH $word
WITH collect(a) AS begun
OPTIONAL MATCH (b:Run {name: $word})
WITH begun, collect(b) AS called
OPTIONAL MATCH (:Name {name: $word})-[:NAMES]->(c:Run)
WITH begun, called, collect(c) AS named
OPTIONAL MATCH (:Name {id: 'run:' + $word})-[:NAMES]->(d:Run)
WITH begun, called, named, collect(d) AS meant
UNWIND begun + called + named + meant AS f
WITH DISTINCT f AS r
WITH r WHERE r.state = 'ready'
OPTIONAL MATCH (n:Name)-[:NAMES]->(r)
WITH r, collect(n.space + '/' + n.name) AS names,
  collect('name ' + n.space + '/' + n.name + ' ' + n.origin) AS loaded_names
OPTIONAL MATCH (t:Tag)-[g:TAGS]->(r)
WITH r, names, loaded_names, collect(t.id) AS tags,
  collect('tag ' + t.id + ' ' + g.origin) AS loaded_tags
OPTIONAL MATCH (m:Note)-[:ABOUT]->(r)
WITH r, names, loaded_names, tags, loaded_tags, collect(m.text) AS notes,
  collect('note ' + substring(m.text, 0, 40) + ' ' + m.origin) AS loaded_notes
OPTIONAL MATCH (:User {id: $user})-[s:ASKED_FOR]->(r)
WITH r, names, loaded_names, tags, loaded_tags, notes, loaded_notes, max(s.time) AS asked
RETURN r.id AS id, r.name AS name, r.tool AS tool, r.world AS world, r.job_ranks AS job_ranks,
  r.step AS step, r.steps AS steps, r.ops AS ops, r.devices AS devices, r.busy AS busy, r.exposed AS exposed,
  r.unexplained AS unexplained, r.launching AS launching, r.left_out AS left_out, r.created AS created,
  r.builder AS builder, r.claim AS claim,
  names, tags, notes, asked, loaded_names + loaded_tags + loaded_notes AS loaded
ORDER BY created DESC, id
