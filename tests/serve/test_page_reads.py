"""What a page reads of a store: each list once, and no list for the page of one thing."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from stagedb.api import Stagedb
from stagedb.serve import Limits
from stagedb.store import Store, connection, failures, load
from stagedb.store.statements import names
from tests.conftest import Fill
from tests.ir.tiny import card
from tests.serve.served import Served, serving


def stock(store: Store) -> tuple[str, str]:
    db = Stagedb(store)
    profile = db.profile(model=card("llama"), tp=2, dp=2, name="wide")
    db.instantiate(card("llama"), pp=2, dp=2, global_batch_size=4, name="deep")
    return profile.instance.id, profile.info.id


@pytest.fixture
def ids(fill_embedded: Fill) -> tuple[str, str]:
    return fill_embedded(stock).made


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the statements that are sent, in their order."""
    found, known = list[str](), {load(name).text: name for name in names()}
    rows_of = failures.rows_of

    def recorded(transaction: Any, text: str, params: Any) -> Any:
        found.append(known.get(text, text))
        return rows_of(transaction, text, params)

    monkeypatch.setattr(connection, "rows_of", recorded)
    return found


@pytest.fixture
def served(fill_embedded: Fill) -> Iterator[Served]:
    with serving(copy.copy(fill_embedded(stock).store), limits=Limits(recent=120.0)) as found:
        yield found


PAGES = (
    "/",
    "/lookup?text=wide",
    "/list/instances",
    "/list/profiles",
    "/find?model=tiny-llama",
    "/cypher",
    "/models/gpt2",
)


@pytest.mark.parametrize("path", [*PAGES, "/instances/{0}", "/instances/{0}/memory", "/profiles/{1}"])
def test_a_page_reads_no_list_twice(path: str, ids: tuple[str, str], served: Served, sent: list[str]) -> None:
    assert served.get(path.format(*ids)).status == 200
    lists = [name for name in sent if name.startswith("catalog/")]
    assert sorted(lists) == sorted({*lists})


def test_pages_share_the_lists_that_they_read(ids: tuple[str, str], served: Served, sent: list[str]) -> None:
    for path in PAGES:
        assert served.get(path).status == 200
    lists = [name for name in sent if name.startswith("catalog/")]
    assert sorted(lists) == sorted({*lists})
    assert {"catalog/names", "catalog/plans", "catalog/profiles"} <= {*lists}


def test_the_page_of_one_thing_reads_no_list(ids: tuple[str, str], served: Served, sent: list[str]) -> None:
    for path in ("/instances/{0}", "/instances/{0}/memory", "/profiles/{1}"):
        assert served.get(path.format(*ids)).status == 200
    assert [name for name in sent if name.startswith("catalog/")] == []


def test_memory_is_analysed_once_for_its_tables_and_its_curve(
    ids: tuple[str, str], served: Served, sent: list[str]
) -> None:
    answer = served.get(f"/instances/{ids[0]}/memory")
    assert "Memory over the step, class 0" in answer.text
    assert sent.count("build/all_tensors") == 1
