"""A store of a schema before the first one is refused with the commands that make again what it has."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from stagedb.api import database
from stagedb.errors import UsageError
from stagedb.plans import Plan
from stagedb.store import Store, connect, migrations

WORDS = Plan(tp=2, pp=4, dp=2, seq_len=4096).to_dict()

CASES: dict[str, tuple[dict[str, Any], str]] = {
    "library": (
        {"name": "first", "plan": json.dumps(WORDS)},
        "stagedb instantiate llama3-8b --tp 2 --pp 4 --dp 2 --seq-len 4096 --recipe torch --name first",
    ),
    "card": (
        {"name": "second", "graph": "other", "plan": json.dumps({"tp": 2})},
        "stagedb instantiate CARD --tp 2 --seq-len 2048 --recipe torch --name second   (CARD: the card of my-model)",
    ),
    "unknown word": (
        {"name": None, "plan": '{"tensor": 2}'},
        'stagedb instantiate llama3-8b --plan FILE, with {"tensor": 2}',
    ),
}


@contextlib.contextmanager
def older(store: Store, version: int) -> Iterator[None]:
    """The store as an older program left it, with an instance for each case."""
    rows = [
        {"id": f"i{number}", "graph": "g", "created": -number, **properties}
        for number, (properties, _) in enumerate(CASES.values())
    ]
    with store._session("WRITE") as session:
        session.run("CREATE (:Graph {id: 'g', name: 'llama3-8b'}), (:Graph {id: 'other', name: 'my-model'})").consume()
        session.run("UNWIND $rows AS row CREATE (i:Instance) SET i = row", rows=rows).consume()
        try:
            store.write("schema/mark", version=version, applied=version, now=0)
            yield
        finally:
            session.run("MATCH (n:Graph|Instance) DETACH DELETE n").consume()
            store.write("schema/mark", version=migrations.oldest_user(), applied=migrations.NEWEST, now=0)


@pytest.mark.parametrize("version", [1, migrations.FIRST - 1])
def test_an_older_store_is_refused_with_what_makes_its_instances_again(
    store: Store, store_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    for name, value in store_environment.items():
        monkeypatch.setenv(name, value)
    with older(store, version):
        for door in (lambda: connect(environment=store_environment), database.migrate, database.up):
            with pytest.raises(UsageError, match=rf"older stagedb \(its schema is version {version}") as refused:
                door()
            assert refused.value.message.splitlines()[1:] == [f"  {command}" for _, command in CASES.values()]
        assert database.status().state == "written by an older stagedb"
        # Nothing was changed.
        assert store.query("MATCH (i:Instance) RETURN count(i) AS n").rows == ((len(CASES),),)


def test_an_older_store_without_instances_names_the_way_alone(store: Store, store_environment: dict[str, str]) -> None:
    store.write("schema/mark", version=3, applied=3, now=0)
    try:
        with pytest.raises(UsageError, match=r"build there again what you need$"):
            connect(environment=store_environment)
    finally:
        store.write("schema/mark", version=migrations.oldest_user(), applied=migrations.NEWEST, now=0)
