"""Many instances and profiles in a store, quickly: copies of the nodes that lists and searches read."""

from typing import Any

from stagedb.store import Store

_READ = """
MATCH (i:Instance {id: $instance})<-[:OF]-(p:Profile)
MATCH (i)-[:HAS_CLASS]->(c:RankClass)
RETURN properties(i) AS instance, properties(p) AS profile, collect(properties(c)) AS classes
"""
_INSTANCES = """
UNWIND $rows AS row
MATCH (g:Graph {id: row.instance.graph})
CREATE (i:Instance)-[:OF]->(g)
SET i = row.instance
CREATE (p:Profile)-[:OF]->(i)
SET p = row.profile
CREATE (n:Name)-[:NAMES]->(i)
SET n.id = row.name, n.space = 'ada', n.name = row.instance.name
"""
_CLASSES = """
UNWIND $rows AS row
MATCH (i:Instance {id: row.instance})
CREATE (i)-[:HAS_CLASS]->(c:RankClass)
SET c = row
"""


def copies(store: Store, instance: str, count: int) -> None:
    """Copies of an instance with one profile: with its rank classes, a name, and a step that is 1 ns longer each."""
    (instance_node, profile, classes), *_ = store.query(_READ, {"instance": instance}).rows
    rows: list[dict[str, Any]] = []
    for number in range(1, count + 1):
        made = {**instance_node, "id": f"{number:020x}", "name": f"copy-{number}"}
        timed = {**profile, "id": f"{number + (1 << 40):020x}", "instance": made["id"]}
        rows.append(
            {
                "name": f"ada/{made['name']}",
                "instance": made,
                "profile": {**timed, "step": profile["step"] + number},
            }
        )
    of = [
        {**each, "id": f"{row['instance']['id']}/{each['class']}", "instance": row["instance"]["id"]}
        for row in rows
        for each in classes
    ]
    with store._session("WRITE") as session:
        session.run(_INSTANCES, rows=rows).consume()
        session.run(_CLASSES, rows=of).consume()
