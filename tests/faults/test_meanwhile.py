"""A command is stopped between two of its statements, another client removes what it reads or makes it again, and the
command goes on: it makes nothing of a half, and names what happened."""

from pathlib import Path

import pytest
import yaml

from stagedb.api import Stagedb
from stagedb.store import Store
from tests.faults.meanwhile import resumed, stopped_at
from tests.ir.tiny import card
from tests.traces.written import files_of

PLAN = {"tp": 2, "pp": 2, "dp": 2}
READS = {
    "export": (["export", "mine", "--out", "{}"], "read.workload/edges"),
    "export-classes": (["export", "mine", "--out", "{}"], "read.workload/classes"),
    "export-profile": (["export", "--profile", "timed", "--out", "{}"], "read.profile/durations"),
    "profile": (["profile", "mine", "--system", "tpu-v5p"], "read.workload/ops"),
    "report": (["report", "mine", "--out", "{}"], "read.workload/buckets"),
    "timeline": (["timeline", "--profile", "timed", "--out", "{}"], "read.workload/tasks"),
    "memory": (["memory", "mine"], "read.build/all_ops"),
    "memory-rows": (["memory", "mine"], "read.memory/all_tensors"),
    "diff": (["diff", "mine", "other"], "read.catalog/work_totals"),
    "query": (["query", "bytes_by_axis", "--instance", "mine"], "read.lifecycle/version_instance:pause:2"),
}
"""By case a command, and the statement before which it is stopped."""


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    """Path of a small model's card."""
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump({**card("llama", layers=2).to_dict(), "max_positions": 32}), encoding="utf-8")
    return str(path)


def make(store: Store) -> Stagedb:
    db = Stagedb(store)
    db.instantiate(card("llama", layers=2), name="mine", **PLAN)  # type: ignore[arg-type]
    db.profile("mine", name="timed")
    return db


@pytest.mark.parametrize("case", list(READS))
def test_what_is_removed_while_it_is_read_is_named(
    store: Store, store_environment: dict[str, str], tmp_path: Path, case: str
) -> None:
    db = make(store)
    if case == "diff":
        db.instantiate(card("llama", layers=2), name="other", tp=4)
    out, (arguments, point) = tmp_path / "made", READS[case]
    process = stopped_at(point, [word.format(out) for word in arguments], store_environment)
    removed = db.rm("mine")
    status, printed = resumed(process)
    assert (status, "was removed by another process while it was read" in printed) == (1, True), printed
    assert removed[0].id in printed or case in ("timeline", "export-profile")
    assert "damaged" not in printed and "Traceback" not in printed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("digests", [True, False])
def test_what_is_made_again_while_it_is_read_is_read_again(
    store: Store, store_environment: dict[str, str], tmp_path: Path, digests: bool
) -> None:
    """Also without digests, as in an instance from before schema 5, which is otherwise believed."""
    db = make(store)
    db.export("mine", out=tmp_path / "alone")
    if not digests:
        forget_digests(store)
    command = ["export", "mine", "--out", str(tmp_path / "made")]
    process = stopped_at("read.workload/edges", command, store_environment)
    db.rm("mine")
    db.instantiate(card("llama", layers=2), name="mine", **PLAN)  # type: ignore[arg-type]
    status, printed = resumed(process)
    assert status == 0, printed
    assert "was made again by another process while it was read" in printed
    assert files_of(tmp_path / "made") == files_of(tmp_path / "alone")


def test_an_export_of_an_old_instance_is_whole_too(
    store: Store, store_environment: dict[str, str], tmp_path: Path
) -> None:
    """Without digests only the version of what was read shows that its edges are gone."""
    db = make(store)
    forget_digests(store)
    process = stopped_at("read.workload/edges", ["export", "mine", "--out", str(tmp_path / "made")], store_environment)
    db.rm("mine")
    status, printed = resumed(process)
    assert (status, "was removed by another process" in printed) == (1, True), printed
    assert list(tmp_path.iterdir()) == []


def forget_digests(store: Store) -> None:
    with store._session("WRITE") as session:
        session.run("MATCH (c:RankClass) REMOVE c.ops_digest, c.edges_digest, c.tasks_digest").consume()
        session.run("MATCH (i:Instance) REMOVE i.ranks_digest, i.groups_digest").consume()


@pytest.mark.parametrize(
    ("arguments", "point"),
    [
        (["instantiate", "{}", "--tp", "2", "--name", "mine"], "read.lookup/instance:pause:2"),
        (["build", "{}"], "read.lookup/graph:pause:2"),
        (["profile", "--model", "{}", "--tp", "2"], "read.lookup/profile"),
    ],
)
def test_what_is_removed_as_soon_as_it_is_made_is_named(
    store: Store, store_environment: dict[str, str], tiny: str, arguments: list[str], point: str
) -> None:
    process = stopped_at(point, [word.format(tiny) for word in arguments], store_environment)
    db = Stagedb(store)
    for graph in db.graphs():
        db.rm(graph.id, force=True)
    status, printed = resumed(process)
    assert (status, "was removed by another process as soon as it was there" in printed) == (1, True), printed
    assert "Traceback" not in printed and "stagedb itself failed" not in printed


@pytest.mark.parametrize("again", [False, True])
def test_what_is_removed_while_it_is_checked_is_no_problem(
    store: Store, store_environment: dict[str, str], again: bool
) -> None:
    db = make(store)
    process = stopped_at("read.dump/nodes_op", ["store", "check"], store_environment)
    db.rm("mine")
    if again:
        make(store)
    status, printed = resumed(process)
    assert (status, "nothing is wrong" in printed) == (0, True), printed
