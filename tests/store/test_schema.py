"""The schema table, and what the store holds of it."""

import re
from typing import Any

from stagedb.instance import instantiate
from stagedb.issue.source import read_workload
from stagedb.parallel import Plan
from stagedb.profile import analyse, profile_job, record, record_profile
from stagedb.store import LABELS, RELATIONSHIPS, Store, load, names, schema, write_graph
from tests.instance.small_graph import small_graph
from tests.profile.plain import PLAIN

EIGHT = Plan(tp=2, dp=2, pp=2, seq_len=16)

PYTHON: dict[str, type] = {"string": str, "integer": int, "float": float, "boolean": bool}


def fits(value: Any, declared: str) -> bool:
    if declared.endswith("?"):
        declared = declared[:-1]
    if declared.endswith("[]"):
        return isinstance(value, list) and all(fits(each, declared[:-2]) for each in value)
    return type(value) is PYTHON[declared]


def test_every_property_of_every_node_is_in_the_table_with_its_type(store: Store) -> None:
    write_graph(store, small_graph())
    made = instantiate(store, small_graph().key, EIGHT)
    record(store, made, analyse(store, small_graph().key, EIGHT))
    record_profile(store, profile_job(read_workload(store, made), PLAIN))
    for label in LABELS:
        table = {row.name: row.type for row in label.properties}
        wanted = {name for name, kind in table.items() if not kind.endswith("?")}
        nodes = store.query(f"MATCH (n:{label.name}) RETURN properties(n) AS p, labels(n) AS l").rows
        assert nodes, label.name
        for properties, labels in nodes:
            assert set(labels) <= {label.name, *label.also}
            assert set(properties) <= set(table), label.name
            assert wanted <= set(properties), label.name
            for name, value in properties.items():
                assert fits(value, table[name]), (label.name, name, value)


def test_every_edge_is_in_the_table(store: Store) -> None:
    write_graph(store, small_graph())
    made = instantiate(store, small_graph().key, EIGHT)
    record_profile(store, profile_job(read_workload(store, made), PLAIN))
    mains = {label.name for label in LABELS}
    known = {(edge.source, edge.type, edge.target): edge for edge in RELATIONSHIPS}
    found = store.query(
        "MATCH (a:Op|Task|SymOp|OpTime|TaskTime)-[r]->(b) RETURN DISTINCT labels(a) AS a, type(r) AS t, labels(b) AS b"
    )
    for source, kind, target in found.rows:
        assert ((set(source) & mains).pop(), kind, (set(target) & mains).pop()) in known
    for edge in RELATIONSHIPS:
        allowed = {row.name for row in edge.properties}
        rows = store.query(
            f"MATCH (:{edge.source})-[r:{edge.type}]->(:{edge.target}) UNWIND keys(r) AS k RETURN DISTINCT k AS k"
        ).rows
        assert {key for (key,) in rows} <= allowed, edge


def test_constraints_and_indexes_are_there_and_may_be_made_again(store: Store) -> None:
    store.migrate()
    with store._session("WRITE") as session:
        for text in schema.definitions():
            session.run(text).consume()
        found = {
            (tuple(row["labelsOrTypes"] or ()), tuple(row["properties"] or ())) for row in session.run("SHOW INDEXES")
        }
    for label in LABELS:
        for keys in ((label.unique,), *label.indexes):
            assert ((label.name,), keys) in found


def test_the_page_tells_everything() -> None:
    page = schema.page()
    for label in LABELS:
        assert f"## :{label.name}\n" in page
        for row in label.properties:
            assert f"| `{row.name}` | {row.type} | {row.unit or ''} | {row.description} |" in page
    for edge in RELATIONSHIPS:
        assert f"(:{edge.source})-[:{edge.type}]->(:{edge.target})" in page


def test_neo4j_plans_every_statement_without_scanning_the_store(neo4j_store: Store) -> None:
    """A label is scanned only where the statement names no key of it."""
    keyed = {label.name: {label.unique, *(key for keys in label.indexes for key in keys)} for label in LABELS}
    for name in names():
        statement = load(name)
        with neo4j_store._session("READ") as session:
            params = {field.name: _example(field.type) for field in statement.params}
            plan = session.run(f"EXPLAIN {statement.text}", params).consume().plan
        assert plan is not None
        for operator, details in _operators(plan):
            if name != "schema/is_empty":
                assert "AllNodesScan" not in operator, f"{name}: {operator} {details}"
            if "NodeByLabelScan" in operator:
                label = details.split(":")[-1].strip()
                scanned = [
                    key for key in keyed.get(label, ()) if re.search(rf":{label} {{{key}: (\$|row\.)", statement.text)
                ]
                assert not scanned, f"{name} scans {label}, which it could find by {scanned}"


def _example(declared: str) -> Any:
    if declared.endswith("?"):
        return _example(declared[:-1])
    if declared.endswith("[]"):
        return [_example(declared[:-2])]
    return {"string": "x", "integer": 1, "float": 1.0, "boolean": True, "map": {}}[declared]


def _operators(plan: dict[str, Any]) -> list[tuple[str, str]]:
    here = [(plan["operatorType"], plan["args"].get("Details", ""))]
    return here + [each for child in plan.get("children", ()) for each in _operators(child)]
