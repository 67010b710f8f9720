"""The page of questions: its plain Cypher gives the rows of the named query above it, on both engines."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stagedb.api.client import Stagedb
from stagedb.api.querying import find
from stagedb.graphs.model_graph import build_graph
from stagedb.plans import GraphOptions
from stagedb.store import Store, write_graph
from tests.ir.tiny import card

PAGE = Path(__file__).parents[2] / "docs" / "questions.md"
BLOCK = re.compile(r"^```cypher\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"^\$ stagedb query ([a-z-]+)$", re.MULTILINE)
LIMIT = re.compile(r"\s+LIMIT \d+\s*$")
BROWSER = "## In the Neo4j Browser"


def written_out() -> Iterator[tuple[str, str]]:
    """The names of queries with the Cypher below each."""
    text = PAGE.read_text(encoding="utf-8").split(BROWSER)[0]
    for block in BLOCK.finditer(text):
        yield NAMED.findall(text[: block.start()])[-1].replace("-", "_"), block[1]


def for_pictures() -> list[str]:
    return BLOCK.findall(PAGE.read_text(encoding="utf-8").split(BROWSER)[1])


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one == {name: pytest.approx(value) if isinstance(value, float) else value for name, value in other.items()}


def test_plain_cypher_gives_the_rows_of_the_named_query(store: Store) -> None:
    options = GraphOptions(sp=True, recompute="full")
    graph = build_graph(card("llama", layers=4), options)
    write_graph(store, graph)
    db = Stagedb(store)
    instance = db.instantiate(graph.key, dp=2, tp=2, pp=2, seq_len=16, global_batch_size=6)
    db.memory(instance.id)
    profile = db.profile(instance.id).info.id
    params = {"instance": instance.id, "profile": profile}
    names = []
    for name, text in written_out():
        names.append(name)
        # The page shows the first rows; here all of both are held against each other.
        found = store.query(LIMIT.sub("", text), params)
        named = store.query(LIMIT.sub("", find(name).text), params)
        assert set(found.columns) <= set(named.columns), name
        left = [{column: row[column] for column in found.columns} for row in map(dict, _rows(named))]
        rows = [dict(row) for row in _rows(found)]
        assert rows, name
        assert len(rows) == len(left), name
        for row in rows:
            match = next((each for each in left if same(row, each)), None)
            assert match is not None, (name, row)
            left.remove(match)
    assert len(set(names)) >= 10
    for text in for_pictures():
        assert store.query(text, params).rows, text


def _rows(answer: Any) -> list[dict[str, Any]]:
    return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]


def test_blocks_go_between_the_quotes_of_a_shell() -> None:
    assert not [text for _, text in written_out() if "'" in text]
