// Write a text that another connection finds if it leads to the same store.
//
// mode: writes
// param probe: string — the text, which nobody wrote before
MATCH (s:Store {id: 'stagedb'})
SET s.probe = $probe
