"""The store that tests share which only read (`fill` of tests/conftest.py)."""

import pytest

from stagedb.api import Stagedb
from stagedb.store import Store
from stagedb.store.failures import ReadOnlyError
from tests.conftest import Fill, empty, is_own
from tests.ir.tiny import card


def test_a_store_is_filled_once_and_refuses_writes(fill: Fill) -> None:
    calls = []

    def stock(store: Store) -> str:
        calls.append(store)
        return Stagedb(store).build(card("llama", layers=1)).id

    first, again = fill(stock), fill(stock)
    if not is_own(again.store):
        pytest.skip("other test processes use the same server, so that nothing stays in it")
    assert len(calls) == 1 and first.made == again.made
    assert [each.id for each in Stagedb(again.store).graphs()] == [first.made]
    with pytest.raises(ReadOnlyError):
        Stagedb(again.store).build(card("llama", layers=2))
    assert len(Stagedb(fill(lambda store: None).store).graphs()) == 0, "another content is alone"
    fill(stock)
    empty(calls[0])
    fill(stock)
    assert len(calls) == 3, "an emptied store is filled again"
