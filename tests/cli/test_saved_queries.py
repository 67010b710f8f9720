"""Queries that users save in the store: they run as named ones, and are checked as such."""

import json
import warnings
from pathlib import Path

import pytest

from stagedb.store import Store
from tests.cli.conftest import Run

WIDE = """// Instances with at least so many ranks of tp.
//
// mode: reads
// param tp: integer — the degree
// column id: string — the instance's id
MATCH (i:Instance {state: 'ready'}) WHERE i.tp >= $tp RETURN i.id AS id ORDER BY id
"""


@pytest.fixture
def wide(tmp_path: Path) -> str:
    path = tmp_path / "wide.cypher"
    path.write_text(WIDE, encoding="utf-8")
    return str(path)


def test_a_saved_query_runs_by_its_name(run: Run, tiny: str, wide: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGEDB_USER", "ada")
    assert run("instantiate", tiny, "--tp", "2").status == 0
    assert run("queries", "--save", "wide", "--file", wide).out == "saved query ada/wide\n"
    monkeypatch.setenv("STAGEDB_USER", "bob")
    (listed,) = json.loads(run("queries", "--saved", "-f", "json").out)
    assert (listed["name"], listed["subject"], listed["parameters"], listed["columns"]) == (
        "ada/wide",
        "saved",
        ["tp"],
        ["id"],
    )
    for word in ("wide", "ada/wide"):
        assert len(json.loads(run("query", word, "-p", "tp=2", "-f", "json").out)) == 1
    assert json.loads(run("query", "wide", "-p", "tp=4", "-f", "json").out) == []
    assert "tp" in run("query", "wide").err
    assert run("queries", "--forget", "ada/wide").status == 2
    assert run("queries", "--save", "ada/wide", "--file", wide).status == 2
    assert run("queries", "--save", "wide", "--file", wide).status == 0
    monkeypatch.setenv("STAGEDB_USER", "eve")
    assert "give one of ada/wide, bob/wide" in run("query", "wide", "-p", "tp=2").err
    monkeypatch.setenv("STAGEDB_USER", "bob")
    assert run("queries", "--forget", "wide").status == 0
    assert [row["name"] for row in json.loads(run("queries", "--saved", "-f", "json").out)] == ["ada/wide"]


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("RETURN", "SET i.tp = 9 RETURN", "SET"),
        ("mode: reads", "mode: writes", "only queries that read can be saved"),
        ("// param tp: integer — the degree\n", "", "uses the parameter tp and never declares it"),
        ("$tp", "2", "declares the parameter tp and never uses it"),
        ("// mode: reads\n", "", "header needs"),
    ],
)
def test_what_cannot_be_a_named_query_is_refused(run: Run, wide: str, old: str, new: str, error: str) -> None:
    Path(wide).write_text(WIDE.replace(old, new), encoding="utf-8")
    ran = run("queries", "--save", "wide", "--file", wide)
    assert (ran.status, ran.out) == (2, "")
    assert error in ran.err
    Path(wide).write_text(WIDE, encoding="utf-8")
    assert "is a named query of stagedb" in run("queries", "--save", "hotspots", "--file", wide).err


def test_a_hostile_query_of_a_store_is_left_out(run: Run, wide: str, store: Store) -> None:
    """What a colleague put there with another program is checked as what is saved."""
    assert run("queries", "--save", "wide", "--file", wide).status == 0
    with store._session("WRITE") as session:
        session.run("MATCH (q:SavedQuery) SET q.text = replace(q.text, 'RETURN', 'DETACH DELETE i RETURN')").consume()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        ran = run("query", "wide", "-p", "tp=1")
        assert ran.status == 2
        assert "saved query left out" in ran.err
        assert json.loads(run("queries", "--saved", "-f", "json").out) == []


def test_a_query_is_explained_by_its_name(run: Run) -> None:
    found = run("queries", "idle-gaps")
    assert found.status == 0 and found.err.startswith("idle_gaps: The gaps of the critical path of a run")
    assert "takes run (string): " in found.err
    rows = {row["column"]: row for row in json.loads(run("queries", "idle_gaps", "-f", "json").out)}
    assert rows["launching"]["unit"] == "ns" and rows["launching"]["meaning"]
    (info,) = [each for each in json.loads(run("queries", "-f", "json").out) if each["name"] == "idle_gaps"]
    assert [*rows] == info["columns"]
    assert "did you mean idle_gaps, " in run("queries", "idle_gap").err
    assert "no query 'idle_gaps' is saved" in run("queries", "idle_gaps", "--saved").err
    assert "leave one out" in run("queries", "idle_gaps", "--forget", "x").err


def test_the_list_of_a_terminal_has_a_sentence_of_each_query(run: Run) -> None:
    listed = run("queries")
    assert "`stagedb queries NAME` has all of what one asks" in listed.err
    whole = {info["name"]: info["asks"] for info in json.loads(run("queries", "-f", "json").out)}
    assert whole["hotspots"].count(". ") > 1
    text = " ".join(listed.out.split())
    assert "Where a step communicates and computes nothing, the longest first." in text
    assert "Numbers are averages over the ranks" not in text
