"""Free queries: they answer, can never write, and end in time."""

import contextlib
import dataclasses
import json

import pytest

from stagedb.errors import StagedbError, UsageError
from stagedb.store import Store, write_graph
from stagedb.store import free_queries as queries
from tests.instances.small_graph import small_graph


def test_rows_and_columns(store: Store) -> None:
    table = store.query("UNWIND $rows AS x RETURN x AS x, x * 2 AS double ORDER BY x", {"rows": [2, 1]})
    assert table.columns == ("x", "double")
    assert table.rows == ((1, 2), (2, 4))


def test_no_rows_have_columns(store: Store) -> None:
    table = store.query("MATCH (o:Op {instance: 'none'}) RETURN o.name AS name, o.id AS id")
    assert table.columns == ("name", "id")
    assert table.rows == ()


def test_values_are_plain_data(store: Store) -> None:
    small = small_graph()
    first, *others = small.ops
    graph = dataclasses.replace(small, ops=(dataclasses.replace(first, reads=(small.tensors[0].name,)), *others))
    write_graph(store, graph)
    table = store.query(
        "MATCH p = (o:SymOp)-[r:READS]->(t:SymTensor) "
        "RETURN o, r, p, [o, 1] AS list, {t: t} AS map, datetime('2026-01-02T03:04:05Z') AS at, null AS none LIMIT 1"
    )
    (row,) = table.rows
    op, reads, path, listed, mapped, at, none = row
    assert op["labels"] == ["SymOp"]
    assert op["properties"]["graph"] == small_graph().key
    assert reads["type"] == "READS"
    assert reads["properties"] == {"slot": 0}
    assert path["nodes"][0] == op == listed[0]
    assert mapped["t"]["labels"] == ["SymTensor"]
    assert at.startswith("2026-01-02T03:04:05")
    assert none is None
    json.dumps(row)


WRITES = (
    "CREATE (:Op {id: 'x'})",
    "MATCH (o:SymOp) SET o.name = 'x'",
    "MATCH (o:SymOp) DETACH DELETE o",
    "MERGE (:Other {id: 'x'})",
    "CREATE INDEX other FOR (o:Op) ON (o.name)",
    "DROP CONSTRAINT op_id",
)


def contents(store: Store) -> list[object]:
    nodes = store.query("MATCH (n) WHERE NOT n:StagedbTests RETURN labels(n) AS l, properties(n) AS p ORDER BY p.id")
    edges = store.query("MATCH (:SymOp)-[r]->() RETURN count(r) AS n")
    with store._session("READ") as session:
        schema = [sorted(str(row["labelsOrTypes"]) for row in session.run("SHOW CONSTRAINTS"))]
        schema.append(sorted(str(row["labelsOrTypes"]) + str(row["properties"]) for row in session.run("SHOW INDEXES")))
    return [nodes, edges, schema]


@pytest.mark.parametrize("text", WRITES)
def test_writes_are_refused_and_nothing_changes(text: str, store: Store) -> None:
    write_graph(store, small_graph())
    before = contents(store)
    with pytest.raises(UsageError, match="only read"):
        store.query(text)
    assert contents(store) == before


@pytest.mark.parametrize("text", WRITES)
def test_what_passes_the_check_cannot_write_either(text: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check comes first; without it the store itself refuses."""
    write_graph(store, small_graph())
    before = contents(store)
    with monkeypatch.context() as without:
        without.setattr(queries, "check", lambda text: None)
        # One engine judges an update when it is committed, which it never is.
        with contextlib.suppress(StagedbError):
            store.query(text)
    assert contents(store) == before


def test_a_parameter_that_nobody_gave_is_named_with_its_option(store: Store) -> None:
    with pytest.raises(UsageError, match=r"foo \(--param KEY=VALUE\)"):
        store.query("RETURN $foo AS foo", {})


def test_a_text_that_is_not_cypher_is_refused(store: Store) -> None:
    with pytest.raises(UsageError, match="does not understand") as refused:
        store.query("MATCH (o:Op) RETRUN o")
    assert "RETRUN" in str(refused.value)


def test_a_missing_parameter_is_named(store: Store) -> None:
    with pytest.raises(UsageError, match="x"):
        store.query("RETURN $x AS x")


def test_a_query_that_takes_too_long_is_ended(store: Store) -> None:
    write_graph(store, small_graph())
    nodes = "abcdef"  # 19^6 rows: far over a second, and an engine that goes on unasked is done some time
    long = f"MATCH {', '.join(f'({x}:SymOp)' for x in nodes)} WHERE {' + '.join(f'{x}.order' for x in nodes)} < 0"
    with pytest.raises(StagedbError, match=r"ended after 1 s.*--timeout"):
        store.query(f"{long} RETURN count(*) AS n", timeout=1.0)
    assert store.query("RETURN 1 AS x").rows == ((1,),)


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan")])
def test_a_time_out_is_above_zero(timeout: float, embedded_store: Store) -> None:
    with pytest.raises(UsageError, match="time-out"):
        embedded_store.query("RETURN 1 AS x", timeout=timeout)
