"""A graph is removed while another process completes an instance of it: never is an instance left without its graph."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from stagedb.api import Stagedb
from stagedb.store import Store
from tests.faults.meanwhile import resumed, stopped_at
from tests.ir.tiny import card

BETWEEN = "read.lifecycle/state_graph"
"""Where a removal has looked for instances, and has not begun to delete the graph."""


def content(db: Stagedb) -> tuple[int, int]:
    """How many graphs and instances there are. Nothing may be wrong with them."""
    assert db.check() == ()
    return len(db.graphs()), len(db.instances())


@pytest.mark.parametrize(
    ("words", "status", "printed", "left"),
    [
        (["--force"], 0, "", (0, 0)),
        ([], 2, "1 instances need graph", (1, 1)),
    ],
    ids=["force", "plain"],
)
def test_an_instance_that_is_made_meanwhile_is_removed_too_or_keeps_its_graph(
    store: Store,
    store_environment: dict[str, str],
    words: list[str],
    status: int,
    printed: str,
    left: tuple[int, int],
) -> None:
    db = Stagedb(store)
    graph = db.build(card("llama", layers=2)).id
    removing = stopped_at(BETWEEN, ["rm", graph, *words], store_environment)
    db.instantiate(card("llama", layers=2), tp=2)
    found, text = resumed(removing)
    assert found == status, text
    assert printed in text
    assert content(db) == left


def test_gc_keeps_a_graph_of_which_an_instance_was_made_meanwhile(
    store: Store, store_environment: dict[str, str]
) -> None:
    db = Stagedb(store)
    db.build(card("llama", layers=2))
    time.sleep(0.01)
    removing = stopped_at(BETWEEN, ["store", "gc", "--unnamed-older-than", "0d", "--yes"], store_environment)
    db.instantiate(card("llama", layers=2), tp=2)
    status, text = resumed(removing)
    assert status == 0, text
    assert content(db) == (1, 1)


def test_an_instance_that_is_about_to_be_complete_is_not_left_without_its_graph(
    store: Store, store_environment: dict[str, str]
) -> None:
    db = Stagedb(store)
    graph = db.build(card("llama", layers=2)).id
    making = stopped_at("write.lifecycle/finish_instance", ["instantiate", graph, "--tp", "2"], store_environment)
    with ThreadPoolExecutor(1) as pool:
        removing = pool.submit(db.rm, graph, force=True)
        time.sleep(2)
        _, text = resumed(making)
        removing.result(timeout=120)
    assert "Traceback" not in text
    assert content(db) == (0, 0)
