"""What the congestion-aware network of ASTRA-sim reads: compared with the rules of its parser, one by one."""

import json
from fractions import Fraction
from pathlib import Path

import pytest
import yaml

from stagedb.errors import UsageError
from stagedb.systems import Accelerator, Dimension, System, load_system
from stagedb.traces.bundle import CHECKSUMS
from stagedb.traces.exporting import trace_set
from stagedb.traces.formats import PACKED, OneFile
from stagedb.traces.set_output import Request, unpack_traces
from stagedb.traces.simulators import DEFAULT, SIMULATORS
from stagedb.traces.simulators.network_levels import SIMULATED_GB
from tests.traces.synthetic import workload
from tests.traces.written import export_workload, files_of

NAME = "astra-sim-congestion-aware"
CHIP = Accelerator("chip", {"bf16": Fraction(90)}, Fraction(1000), Fraction(32), Fraction(0))


def flat(kind: str, size: int | None = None) -> System:
    return System("flat", ("-",), CHIP, (Dimension("links", size, kind, Fraction(84), Fraction(500)),))


def follows_the_parser(directory: Path, world: int) -> tuple[dict[str, list[object]], dict[str, object]]:
    """A network and a system that pass every check of the simulator's own readers."""
    network = yaml.safe_load((directory / "network.yml").read_text())
    assert {len(network[key]) for key in ("topology", "npus_count", "bandwidth", "latency")} == {1}
    assert network["topology"][0] in {"Ring", "Switch", "FullyConnected"}
    assert network["npus_count"] == [world]
    assert network["npus_count"][0] > 1
    assert network["bandwidth"][0] > 0
    assert network["latency"][0] >= 0
    system = json.loads((directory / "system.json").read_text())
    for each in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all"):
        (implementation,) = system[f"{each}-implementation"]
        assert implementation in {"ring", "direct", "direct1"}
    assert json.loads((directory / "memory.json").read_text()) == {"memory-type": "NO_MEMORY_EXPANSION"}
    return network, system


@pytest.mark.parametrize(
    ("kind", "topology", "bandwidth", "latency", "implementation"),
    [
        ("switch", "Switch", 84, 250, "ring"),
        ("ring", "Ring", 42, 500, "ring"),
        ("fully-connected", "FullyConnected", 12, 500, "direct"),
    ],
)
def test_a_mesh_of_several_axes_is_one_dimension(
    tmp_path: Path, kind: str, topology: str, bandwidth: int, latency: int, implementation: str
) -> None:
    export_workload(workload(tp=2, dp=2, pp=2), tmp_path / "traces", system=flat(kind, 8), simulator=NAME)
    network, system = follows_the_parser(tmp_path / "traces", 8)
    assert (network["topology"], network["latency"]) == ([topology], [latency])
    assert network["bandwidth"] == pytest.approx([bandwidth / float(SIMULATED_GB)])
    assert system["all-reduce-implementation"] == [implementation]
    assert "AstraSim_Analytical_Congestion_Aware" in (tmp_path / "traces" / "run.sh").read_text()


def test_the_traces_are_those_of_every_simulator(tmp_path: Path) -> None:
    for name in SIMULATORS:
        export_workload(workload(), tmp_path / name, system=flat("switch"), simulator=name)
    default, aware = files_of(tmp_path / DEFAULT.name), files_of(tmp_path / NAME)
    changed = {name for name, data in aware.items() if default[name] != data}
    # The network of one switch is the same.
    assert changed == {"manifest.json", CHECKSUMS, "run.sh"}
    manifests = [json.loads(each["manifest.json"]) for each in (default, aware)]
    assert [each.get("simulator") for each in manifests] == [None, NAME]


def test_a_job_on_two_dimensions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nvlink and infiniband.*--simulator astra-sim-analytical"):
        export_workload(workload(tp=4, dp=2, pp=2), tmp_path / "traces", system=load_system("h100"), simulator=NAME)
    with pytest.raises(UsageError, match="more --ranks"):
        export_workload(workload(tp=1, dp=1, pp=1), tmp_path / "traces", simulator=NAME)
    assert list(tmp_path.iterdir()) == []


def test_unpack_chooses_the_simulator(tmp_path: Path) -> None:
    assert isinstance(PACKED.files, OneFile)
    PACKED.files.write(tmp_path / "all.packed", trace_set(workload(), system=flat("switch")))
    unpack_traces(tmp_path / "all.packed", Request(tmp_path / "unpacked", simulator=NAME))
    export_workload(workload(), tmp_path / "written", system=flat("switch"), simulator=NAME)
    assert files_of(tmp_path / "unpacked") == files_of(tmp_path / "written")


@pytest.mark.parametrize("words", [{"packed": True}, {"format": "parquet"}])
def test_a_simulator_is_refused_where_no_file_would_be_for_it(tmp_path: Path, words: dict[str, bool]) -> None:
    with pytest.raises(UsageError, match=r"leave out .*--simulator"):
        Request(tmp_path / "traces", simulator=NAME, **words).check(8, None)  # type: ignore[arg-type]


def test_an_unknown_simulator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"unknown simulator 'ns4'.*{NAME}"):
        Request(tmp_path / "traces", simulator="ns4").check(8, None)
