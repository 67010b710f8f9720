"""Graphs become visible only when complete: after any kill, with any number of builders, exactly one is left."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from stagedb.errors import StagedbError
from stagedb.graphs.model_graph import build_graph
from stagedb.models import load_card
from stagedb.plans import GraphOptions
from stagedb.store import Store, building, connect, delete, embedded, leases, read_graph, sweep, unfinished, write_graph
from stagedb.store.failures import ConnectionLost
from tests.faults.injected import at
from tests.instances.small_graph import small_graph
from tests.store.bare import bare_graph
from tests.symbolic_rows import flops

ROOT = Path(__file__).parents[2]

graph = small_graph()

other = small_graph(layers=3, key="other")

POINTS = ("tensors", "ops", "edges")

WRITE = """
from stagedb.store import connect, write_graph
from tests.instances.small_graph import small_graph
from tests.store.bare import bare_graph
from tests.store.bare import bare_graph
with connect() as store:
    print(write_graph(store, small_graph()))
"""


def writer(environment: dict[str, str], fault: str = "") -> "subprocess.Popen[str]":
    """A process that writes the small graph."""
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("NEO4J_", "STAGEDB_"))}
    return subprocess.Popen(
        [sys.executable, "-c", WRITE],
        cwd=ROOT,
        env={**settings, **environment, **at(fault)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ids(store: Store) -> list[str]:
    return [row["id"] for row in store.read("catalog/graphs")]


def left(store: Store) -> int:
    """Nodes of graphs, whole or not."""
    return sum(
        int(store.query(f"MATCH (n:{label}) RETURN count(n) AS n").rows[0][0])
        for label in ("Graph", "SymOp", "SymTensor")
    )


def test_a_whole_model_is_read_back_as_it_was_written(store: Store) -> None:
    graph = build_graph(load_card("llama3-8b"), GraphOptions())
    assert write_graph(store, graph)
    assert read_graph(store, graph.key) == graph
    assert all(op.reads for op in read_graph(store, graph.key).ops if flops(op) != "0")


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_writer_leaves_nothing_to_see_and_the_next_one_completes(
    store: Store, store_environment: dict[str, str], point: str
) -> None:
    killed = writer(store_environment, f"wrote.build/{point}:kill")
    _, printed = killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL, printed
    assert ids(store) == []
    assert left(store) > 1
    assert write_graph(store, graph)
    assert read_graph(store, graph.key) == graph


def test_what_a_killed_writer_left_is_swept(store: Store, store_environment: dict[str, str]) -> None:
    killed = writer(store_environment, "wrote.build/reads:kill")
    killed.communicate(timeout=120)
    assert [(each.kind, each.id) for each in sweep(store)] == [("Graph", graph.key)]
    assert left(store) == 0
    assert sweep(store) == []


def test_who_builds_next_removes_what_a_killed_writer_left(store: Store, store_environment: dict[str, str]) -> None:
    killed = writer(store_environment, "wrote.build/reads:kill")
    killed.communicate(timeout=120)
    assert left(store) > 1
    write_graph(store, other)
    assert unfinished(store) == []
    assert ids(store) == [other.key]
    assert read_graph(store, other.key) == other


def test_a_living_writer_is_not_swept_and_the_next_one_waits(store: Store, store_environment: dict[str, str]) -> None:
    paused = writer(store_environment, "wrote.build/ops:pause")
    wait_until_stopped(paused)
    assert sweep(store) == []
    with pytest.raises(StagedbError, match="being built or deleted by another process"):
        delete(store, "Graph", graph.key)
    made: list[bool] = []
    second = threading.Thread(target=lambda: made.append(write_graph(store, graph)))
    second.start()
    second.join(0.5)
    assert second.is_alive()
    paused.send_signal(signal.SIGCONT)
    assert paused.communicate(timeout=120)[0].strip() == "True"
    second.join(60)
    assert made == [False]
    assert read_graph(store, graph.key) == graph


def test_of_two_writers_at_once_one_writes(store: Store, store_environment: dict[str, str]) -> None:
    writers = [writer(store_environment) for _ in range(3)]
    printed = [each.communicate(timeout=120) for each in writers]
    assert sorted(out.strip() for out, _ in printed) == ["False", "False", "True"], printed
    assert read_graph(store, graph.key) == graph


def test_a_writer_that_was_silent_for_too_long_is_taken_over(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It seems to run on another machine: only its lease shows that it is alive."""
    monkeypatch.setattr(leases, "LEASE", 0.2)
    monkeypatch.setattr(leases.Lease, "_keep", lambda self: None)
    with pytest.raises(StagedbError, match="another process took over"):  # noqa: SIM117 - both end at the last line
        with building(store, "Graph", graph.key, {"name": "toy"}) as lease:
            assert lease is not None
            time.sleep(0.4)
            assert write_graph(store, graph)
            lease.renew()
    assert read_graph(store, graph.key) == graph


@pytest.mark.parametrize("error", [None, ValueError, ConnectionLost])
def test_a_renewal_under_way_ends_with_the_building(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: type[Exception] | None
) -> None:
    """The caller may close the store then, and what is sent at that moment is no longer answered."""
    begun, ended = threading.Event(), threading.Event()

    def renew(lease: leases.Lease) -> None:
        begun.set()
        time.sleep(1.0)
        ended.set()

    monkeypatch.setattr(leases, "LEASE", 0.04)
    monkeypatch.setattr(leases, "_milliseconds", lambda: 60_000)
    monkeypatch.setattr(leases.Lease, "renew", renew)
    with suppress(ValueError, ConnectionLost), building(store, "Graph", "x", {"name": "toy"}):
        assert begun.wait(10)
        if error is not None:
            raise error("oh")
    assert ended.is_set()
    assert not any(each.name == "lease of x" for each in threading.enumerate())


def test_an_error_while_building_clears_what_was_made(store: Store) -> None:
    with pytest.raises(ValueError, match="oh"), building(store, "Graph", "x", {"name": "toy"}) as lease:
        assert lease is not None
        store.write_rows(
            "build/tensors", [{"id": f"x/{n}", "graph": "x", "name": str(n)} for n in range(10)], graph="x"
        )
        raise ValueError("oh")
    assert left(store) == 0


def test_what_is_there_is_not_built_again(store: Store) -> None:
    graph = bare_graph(store)
    with building(store, "Instance", "i", {"name": "a", "graph": graph}) as lease:
        assert lease is not None
        assert store.read("lifecycle/state_instance", id="i")[0]["state"] == "building"
    with building(store, "Instance", "i", {"name": "b", "graph": graph}) as lease:
        assert lease is None
    assert store.query("MATCH (i:Instance) RETURN i.state AS s, i.name AS n, i.owner AS o").rows == (
        ("ready", "a", None),
    )


def test_an_instance_of_a_graph_that_is_gone_is_not_made(store: Store) -> None:
    with (
        pytest.raises(StagedbError, match="cannot make instance i: its graph is gone"),
        building(store, "Instance", "i", {"name": "a", "graph": "nothere"}),
    ):
        raise AssertionError("nothing is built")
    assert store.query("MATCH (i:Instance) RETURN count(i) AS n").rows == ((0,),)


def test_a_graph_is_deleted_with_all_that_belongs_to_it(store: Store) -> None:
    write_graph(store, graph)
    write_graph(store, other)
    assert delete(store, "Graph", graph.key)
    assert not delete(store, "Graph", graph.key)
    assert ids(store) == [other.key]
    assert read_graph(store, other.key) == other
    assert delete(store, "Graph", other.key)
    assert left(store) == 0


def test_nodes_are_deleted_in_chunks(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "CHUNK", 7)
    write_graph(store, graph)
    delete(store, "Graph", graph.key)
    assert left(store) == 0


@pytest.fixture
def own_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Environment of an embedded engine that a test may kill."""
    home = tmp_path_factory.mktemp("own")
    yield {"STAGEDB_HOME": str(home), "STAGEDB_CONFIG": os.devnull}
    embedded.stop(home)


@pytest.mark.parametrize("point", ["ops"])
def test_a_killed_engine_leaves_a_store_that_works(own_engine: dict[str, str], point: str) -> None:
    paused = writer(own_engine, f"wrote.build/{point}:pause")
    wait_until_stopped(paused)
    endpoint = embedded.running(Path(own_engine["STAGEDB_HOME"]))
    assert endpoint is not None
    psutil.Process(endpoint.pid).kill()
    paused.send_signal(signal.SIGCONT)
    _, printed = paused.communicate(timeout=120)
    assert paused.returncode == 1
    assert "was lost" in printed
    with connect(environment=own_engine) as store:
        assert ids(store) == []
        assert write_graph(store, graph)
        assert read_graph(store, graph.key) == graph


def wait_until_stopped(process: "subprocess.Popen[str]") -> None:
    for _ in range(600):
        if psutil.Process(process.pid).status() == psutil.STATUS_STOPPED:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    pytest.fail("the writer did not come to its fault point")


def test_an_error_of_a_statement_names_the_graph_that_vanished_under_it(embedded_store: Store) -> None:
    """One engine fails with an error of its own if a node is deleted while a statement matches it."""
    write_graph(embedded_store, graph)
    with (
        pytest.raises(StagedbError, match=r"cannot finish instance one: its graph was removed meanwhile"),
        building(embedded_store, "Instance", "one", {"graph": graph.key}),
    ):
        delete(embedded_store, "Graph", graph.key)
        raise StagedbError("record not found")
    with (
        pytest.raises(StagedbError, match="cannot make instance one: its graph is gone"),
        building(embedded_store, "Instance", "one", {"graph": graph.key}),
    ):
        pass
