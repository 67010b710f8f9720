// What all complete profiles are called where nobody names them, and their systems.
//
// mode: reads
// column id: string — id of the profile
// column name: string? — what it is called
// column system: string — the system's name
MATCH (p:Profile {state: 'ready'})-[:OF]->(:Instance {state: 'ready'})
RETURN p.id AS id, p.name AS name, p.system AS system
ORDER BY id
