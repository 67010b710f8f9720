// Mark the instances and profiles that schema 3 wrote: they are hidden until they are made
// again from their graph, plan and system. Those that are being deleted stay as they are.
//
// mode: writes
// column done: integer — how many were marked
MATCH (n:Instance|Profile)
WHERE n.schema IS NULL AND NOT n.state IN ['outdated', 'deleting']
SET n.state = 'outdated', n.owner = '', n.lease = 0
RETURN count(n) AS done
