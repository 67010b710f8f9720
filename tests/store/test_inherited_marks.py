"""Names, tags and notes that pass from one instance to the one that replaces it, on every engine here."""

import dataclasses

import pytest

from stagedb.store import Store, write_graph
from stagedb.store.contents.instances import instantiate
from stagedb.store.naming import add_note, add_tag, inherit, set_name, wanted_name
from tests.instances.small_graph import small_graph
from tests.store.test_schema import EIGHT

MARKS = """
MATCH (i:Instance)
OPTIONAL MATCH (a:Name)-[:NAMES]->(i)
OPTIONAL MATCH (t:Tag)-[x:TAGS]->(i)
OPTIONAL MATCH (m:Note)-[:ABOUT]->(i)
RETURN i.id AS id, a.name AS name, t.id AS tag, x.user AS user, x.time AS time, m.text AS text
"""


def test_who_tagged_it_and_when_passes_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    write_graph(store, small_graph())
    old, new = (instantiate(store, small_graph().key, each) for each in (EIGHT, dataclasses.replace(EIGHT, seq_len=8)))
    monkeypatch.setenv("STAGEDB_USER", "ada")
    set_name(store, "Instance", old, wanted_name(store, "mine"))
    add_tag(store, "Instance", old, "paper")
    add_tag(store, "Instance", old, "draft")
    add_note(store, "Instance", old, "why")
    before = [(new, *row[1:]) for row in store.query(MARKS).rows if row[0] == old]
    assert [(row[1], row[3], row[5]) for row in before] == [("mine", "ada", "why")] * 2
    monkeypatch.setenv("STAGEDB_USER", "bob")
    inherit(store, "Instance", old, new)
    after = [row for row in store.query(MARKS).rows if row[2] is not None]
    assert sorted(after, key=str) == sorted(before, key=str)


def test_what_has_no_marks_passes_none_on(store: Store) -> None:
    write_graph(store, small_graph())
    old, new = (instantiate(store, small_graph().key, each) for each in (EIGHT, dataclasses.replace(EIGHT, seq_len=8)))
    inherit(store, "Instance", old, new)
    assert {row[2] for row in store.query(MARKS).rows} == {None}
