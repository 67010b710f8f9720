// Delete all jobs but the newest ones.
//
// mode: writes
// param kept: integer — how many stay
MATCH (j:Job)
WITH j ORDER BY j.started DESC, j.id DESC SKIP $kept
DETACH DELETE j
