"""Timelines: as a replay of the traces, and as published for pipelines."""

import zlib
from pathlib import Path

import numpy as np
import pytest

from stagedb.issue.columns import Ints, Workload
from stagedb.profile.network import Network, network
from stagedb.profile.timeline import Timeline, timeline
from tests.export.synthetic import workload
from tests.export.written import export_workload
from tests.profile.replayed import Run


def cost(name: str, seed: int = 0) -> int:
    """Nanoseconds of what has this name: any, and no two alike."""
    return 1_000 + zlib.crc32(f"{seed} {name}".encode()) % 100_000


def durations(made: Workload, seed: int = 0) -> dict[int, Ints]:
    return {each.number: np.array([cost(name, seed) for name in each.ops.name], np.int64) for each in made.classes}


def check_replay(made: Workload, found: Timeline, out: Path, seed: int = 0) -> None:
    """Every node of every lane begins when it does in a replay of the traces."""
    replayed = Run(out, made.model, lambda name: cost(name, seed))
    assert replayed.run() == found.step
    assert began(found.network, found) == [
        [replayed.ranks[lane.rank].started[node] for node in replayed.ranks[lane.rank].trace.ids]
        for lane in found.network.lanes
    ]


def began(net: Network, found: Timeline) -> list[list[int]]:
    start = found.start[net.event]
    return [start[net.firsts[lane.number] : net.firsts[lane.number + 1]].tolist() for lane in net.lanes]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("tp", "dp", "pp"), [(1, 1, 1), (2, 1, 1), (2, 2, 2), (1, 2, 4), (2, 1, 3)])
@pytest.mark.parametrize("microbatches", [1, 5])
def test_a_step_is_a_replay_of_its_traces(
    tmp_path: Path, schedule: str, tp: int, dp: int, pp: int, microbatches: int
) -> None:
    made = workload(tp=tp, dp=dp, pp=pp, schedule=schedule, microbatches=microbatches)
    export_workload(made, tmp_path / "out")
    for seed in range(3):
        check_replay(made, timeline(network(made), durations(made, seed)), tmp_path / "out", seed)
