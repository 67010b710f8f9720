"""A served store stays as it is, on each engine, and shows only what is complete."""

import pytest

from stagedb.api import Stagedb
from stagedb.errors import UsageError
from stagedb.store import Store
from tests.ir.tiny import card
from tests.serve.served import serving
from tests.serve.test_answers import asked, content, paths, stock


def test_every_page_answers_and_changes_nothing(store: Store) -> None:
    found = stock(store)
    before = content(store)
    with serving(store) as served:
        for path in (*paths(found), asked(query="MATCH (n:Instance) RETURN n.name")):
            answer = served.get(path)
            assert answer.status in (200, 303), (path, answer.text)
        assert served.get(asked(query="CREATE (n:Graph) RETURN n")).status == 400
    assert content(store) == before


def test_what_is_not_complete_is_not_shown(store: Store) -> None:
    instance = Stagedb(store).instantiate(card("llama"), tp=2)
    with store._session("WRITE") as session:  # as a client that ended while it deleted it
        session.run("MATCH (n:Instance {id: $id}) SET n.state = 'deleting'", id=instance.id).consume()
    with pytest.raises(UsageError, match="has no complete Instance"):
        Stagedb(store).sub_graph(f"Instance/{instance.id}")
    found = Stagedb(store).sub_graph(f"Graph/{instance.graph}")
    assert f"Instance/{instance.id}" not in found.nodes
