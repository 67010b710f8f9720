// All profiles of an instance, also unfinished ones. They are deleted with it.
//
// mode: reads
// param instance: string — the instance's id
// column id: string — the profile's id
MATCH (:Instance {id: $instance})<-[:OF]-(p:Profile)
RETURN p.id AS id
ORDER BY id
