"""Degrees of parallelism from what ranks communicate, where neither ops nor groups have names.

The runs are exports of drawn plans with durations, imported without names, kinds, phases and axes. Which groups are on
which axis is to be found. Rules were made on plans of the seeds below 200; those here were not looked at.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stagedb.api.client import Stagedb
from stagedb.api.importing import trace_files
from stagedb.errors import StagedbError
from stagedb.plans import Plan
from stagedb.runs.degrees import FoundDegrees, GroupCall, degrees_of
from stagedb.runs.rank_match import group_calls
from stagedb.runs.run_files import RunFiles
from stagedb.store import Store
from stagedb.traces import chakra_pb2 as pb
from tests.instances.drawn_plans import Drawn, drawn_plan
from tests.runs.recordings import measured
from tests.runs.stored_rows import stored
from tests.sampling import draws

NAMES = ("kind", "phase", "axis", "dtype", "layer", "block")
"""Attributes by which an export names what a node is."""

MOST_RANKS = 16
BATCHES = 5
PLANS = draws(10, 4)
"""Plans in a batch."""


def messages(data: bytes) -> Iterator[bytes]:
    """The messages of a Chakra trace, each after its length as a varint."""
    at = 0
    while at < len(data):
        size = shift = 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        yield data[at : at + size]
        at += size


def framed(message: bytes) -> bytes:
    size, found = len(message), bytearray()
    while size > 127:
        found.append(size & 127 | 128)
        size >>= 7
    return bytes(found) + bytes([size]) + message


def hide(path: Path) -> None:
    """Take everything out of a trace that names what a node is for."""
    first, *nodes = messages(path.read_bytes())
    hidden = [framed(first)]
    for data in nodes:
        node = pb.Node.FromString(data)
        node.name = f"node {node.id}"
        kept = [each for each in node.attr if each.name not in NAMES]
        del node.attr[:]
        node.attr.extend(kept)
        hidden.append(framed(node.SerializeToString()))
    path.write_bytes(b"".join(hidden))


def exports(store: Store, directory: Path, batch: int) -> Iterator[tuple[Plan, Path]]:
    """Hidden exports of the plans of a batch that several ranks run."""
    found, seed = 0, 400 + 1_000 * batch
    while found < PLANS:
        seed += 1
        drawn = drawn_plan(seed)
        if 1 < drawn.program.plan.world <= MOST_RANKS and (path := _exported(store, directory / str(seed), drawn)):
            found += 1
            yield drawn.program.plan, path


def _exported(store: Store, out: Path, drawn: Drawn) -> Path | None:
    db = Stagedb(store)
    made = db.instantiate(drawn.model, **drawn.words)
    try:
        db.export(made.id, out=out, system="h100", durations_in_traces=True)
    except StagedbError:
        # Some messages of such small models are smaller than simulators take.
        return None
    for path in out.glob("*.[0-9]*.et"):
        hide(path)
    return out


@pytest.mark.parametrize("batch", range(BATCHES))
def test_the_degrees_of_drawn_plans_are_found(embedded_store: Store, tmp_path: Path, batch: int) -> None:
    wrong = []
    for plan, path in exports(embedded_store, tmp_path, batch):
        run = stored(measured(RunFiles.of(trace_files([path]))))
        found = degrees_of(group_calls(run), run.job_ranks)
        wanted = str(FoundDegrees(plan.tp, plan.pp, plan.dp, plan.cp, plan.ep))
        if str(found) != wanted and not found.ties:
            wrong.append(f"{wanted}, and found {found}")
    assert len(wrong) <= 1, wrong


def test_ranks_that_do_not_communicate_are_copies() -> None:
    found = degrees_of({0: [], 1: []}, 2)
    assert (str(found), len(found.ties)) == ("tp 1 pp 1 dp 2 cp 1 ep 1", 1)


@pytest.mark.parametrize(
    ("sends", "wanted"), [((0, 0), "tp 1 pp 1 dp 1 cp 2 ep 1"), ((0, 900), "tp 1 pp 2 dp 1 cp 1 ep 1")]
)
def test_two_ranks_that_send_to_each_other(sends: tuple[int, int], wanted: str) -> None:
    """Around a ring both begin together. A second stage begins later by what the first one computes."""

    def calls(rank: int) -> list[GroupCall]:
        times = [sends[rank] + 1_000 * turn for turn in range(4)]
        return [GroupCall("send", (0, 1), 64, time / 5_000, time) for time in times]

    assert str(degrees_of({rank: calls(rank) for rank in range(2)}, 2)) == wanted


@pytest.mark.parametrize(
    ("gradients", "wanted"), [(False, "tp 2 pp 1 dp 1 cp 1 ep 1"), (True, "tp 1 pp 1 dp 2 cp 1 ep 1")]
)
def test_early_reductions_of_gradients_are_of_dp(gradients: bool, wanted: str) -> None:
    """A recording that begins with the end of a step before has reductions early, which else are of tp."""

    def calls() -> list[GroupCall]:
        moments = [0.05, 0.3, 0.6, 0.9]
        return [GroupCall("all_reduce", (0, 1), 64, done, round(1_000 * done), gradients) for done in moments]

    assert str(degrees_of({rank: calls() for rank in range(2)}, 2)) == wanted
