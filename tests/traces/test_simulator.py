"""The simulator's inputs describe the system: each degree of the mesh on the links that its ranks really have."""

import json
from fractions import Fraction
from math import inf
from pathlib import Path

import pytest
import yaml

from stagedb.errors import UsageError
from stagedb.systems import Accelerator, Dimension, System, load_system
from stagedb.traces.simulators import DEFAULT, SimulatedJob
from stagedb.traces.simulators.network_levels import SIMULATED_GB, levels
from tests.traces.synthetic import workload
from tests.traces.written import export_workload

H100 = load_system("h100")
CHIP = Accelerator("chip", {"fp16": Fraction(90)}, Fraction(1000), Fraction(32), Fraction(0))


def simulator_inputs(name: str, world: int, degrees: list[int], system: System) -> dict[str, str]:
    return DEFAULT.inputs(SimulatedJob(name, world, tuple(degrees), system))


def laid(degrees: list[int], system: System = H100) -> list[tuple[int, str]]:
    return [(each.size, each.links.name) for each in levels(degrees, system)]


@pytest.mark.parametrize(
    ("degrees", "wanted"),
    [
        ([8, 1, 4, 2], [(8, "nvlink"), (8, "infiniband")]),
        ([2, 1, 4, 2], [(8, "nvlink"), (2, "infiniband")]),
        ([4, 1, 4, 1], [(8, "nvlink"), (2, "infiniband")]),
        ([16, 1, 1, 1], [(8, "nvlink"), (2, "infiniband")]),
        ([6, 1, 1, 1], [(6, "nvlink")]),
        ([6, 1, 4, 1], [(6, "nvlink"), (4, "infiniband")]),
        ([4, 1, 3, 1], [(4, "nvlink"), (3, "infiniband")]),
        ([12, 1, 2, 1], [(24, "infiniband")]),
        ([1, 1, 1, 1], [(1, "nvlink")]),
    ],
)
def test_each_degree_has_the_links_of_its_ranks(degrees: list[int], wanted: list[tuple[int, str]]) -> None:
    assert laid(degrees) == wanted


def test_a_degree_may_be_cut_more_than_once() -> None:
    assert laid([4, 1, 64, 2], load_system("tpu-v5p")) == [(8, "x"), (8, "y"), (8, "z")]


def test_links_are_those_of_one_accelerator_to_another(tmp_path: Path) -> None:
    files = simulator_inputs("t", 32, [4, 1, 4, 2], load_system("mi300x"))
    network = yaml.safe_load(files["network.yml"])
    assert network["topology"] == ["FullyConnected", "Switch"]
    assert network["npus_count"] == [8, 4]
    gb = [bandwidth * float(SIMULATED_GB) for bandwidth in network["bandwidth"]]
    # The ring of a group within a node gets the bandwidth of all seven links.
    assert gb == pytest.approx([448, 50], rel=1e-6)
    assert network["latency"] == [600, 1350]
    system = json.loads(files["system.json"])
    assert (system["peak-perf"], system["local-mem-bw"]) == (1307.4, 5300)
    assert system["all-reduce-implementation"] == ["ring", "ring"]
    one = simulator_inputs("t", 8, [4, 1, 2, 1], load_system("mi300x"))
    assert yaml.safe_load(one["network.yml"])["bandwidth"][0] * float(SIMULATED_GB) == pytest.approx(64)
    assert json.loads(one["system.json"])["all-reduce-implementation"] == ["direct"]
    torus = yaml.safe_load(simulator_inputs("t", 64, [8, 8], load_system("tpu-v5p"))["network.yml"])
    assert torus["topology"] == ["Ring", "Ring"]
    # Both directions.
    assert torus["bandwidth"][0] * float(SIMULATED_GB) == pytest.approx(200)


def test_smaller_groups_in_a_mesh_are_rings_over_all_of_its_links(tmp_path: Path) -> None:
    export_workload(workload(tp=8, dp=4), tmp_path / "traces", system=load_system("mi300x"))
    assert json.loads((tmp_path / "traces" / "system.json").read_text())["all-reduce-implementation"] == [
        "ring",
        "ring",
    ]
    network = yaml.safe_load((tmp_path / "traces" / "network.yml").read_text())
    # Of 448 GB/s over seven links, with the efficiency of messages from 1 MB to 1 GB.
    assert 448 * 0.3 <= network["bandwidth"][0] * float(SIMULATED_GB) <= 448 * 0.8


def test_without_bf16_the_first_rate_is_taken() -> None:
    links = Dimension("links", None, "ring", Fraction(10), Fraction(5))
    files = simulator_inputs("t", 4, [4], System("mine", ("-",), CHIP, (links,)))
    assert json.loads(files["system.json"])["peak-perf"] == 90


def test_what_a_simulator_cannot_take_is_refused() -> None:
    free = Dimension("free", None, "switch", inf, Fraction(0))
    with pytest.raises(UsageError, match=r"mine has the bandwidth of free .inf, .*--system"):
        simulator_inputs("t", 4, [4], System("mine", ("-",), CHIP, (free,)))
    small = Dimension("small", 2, "switch", Fraction(1), Fraction(0))
    with pytest.raises(UsageError, match="mine has 2 = 2 places, and the job has 4 ranks"):
        simulator_inputs("t", 4, [4], System("mine", ("-",), CHIP, (small,)))
