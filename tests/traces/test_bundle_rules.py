"""`validate` finds simulator inputs that mean something else than the traces and the network, without a simulator."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from stagedb.systems import load_system
from stagedb.traces import validate_traces
from stagedb.traces.bundle import CHECKSUMS
from tests.traces.synthetic import workload
from tests.traces.written import export_workload, timing

Change = Callable[[Path], None]


def network(**values: Any) -> Change:
    def change(directory: Path) -> None:
        path = directory / "network.yml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **values}))

    return change


def system(**values: Any) -> Change:
    def change(directory: Path) -> None:
        path = directory / "system.json"
        words = {name.replace("_", "-"): value for name, value in values.items()}
        path.write_text(json.dumps({**json.loads(path.read_text()), **words}))

    return change


def ascending(directory: Path) -> None:
    path = directory / "tiny.json"
    path.write_text(json.dumps({gid: sorted(members) for gid, members in json.loads(path.read_text()).items()}))
    (directory / CHECKSUMS).unlink()


BREACHES: dict[str, tuple[Change, str, str]] = {
    "another number of ranks": (network(npus_count=[8, 8]), "network", "8 x 8 = 64 ranks, and the set has 32"),
    "a level of one rank": (network(npus_count=[16, 1]), "network", "npus_count 1"),
    "a kind of no simulator": (network(topology=["Switch", "Torus"]), "network", "topology 'Torus'"),
    "a level without a latency": (network(latency=[1.0]), "network", "2 topologies and 1 of latency"),
    "no bandwidth": (network(bandwidth=[0, 1]), "network", "bandwidth 0"),
    "a list that is none": (network(bandwidth=3), "network", "no list of bandwidth"),
    "one implementation": (
        system(all_reduce_implementation=["ring"]),
        "implementation",
        "has 1 entries, and network.yml 2 levels",
    ),
    "an unknown one": (system(all_gather_implementation=["ring", "nvls"]), "implementation", "has 'nvls'"),
    "all at once on a switch": (
        system(reduce_scatter_implementation=["direct", "ring"]),
        "implementation",
        "direct on Switch: it sends to all at once",
    ),
    "no implementation": (system(all_to_all_implementation=None), "implementation", "no list all-to-all-"),
    "durations of no trace": (system(roofline_enabled=0), "roofline", "no compute node has a duration"),
    "ascending groups": (ascending, "ring", "steps that change an inner and an outer level"),
}


def exported(out: Path, **words: Any) -> Path:
    export_workload(workload(tp=4, dp=4), out, system=load_system("h100"), **words)
    return out


@pytest.mark.parametrize("name", BREACHES)
def test_a_breach_is_found(tmp_path: Path, name: str) -> None:
    change, rule, message = BREACHES[name]
    out = exported(tmp_path / "set")
    assert validate_traces(out, replayed=False).faults == ()
    change(out)
    first, *_ = validate_traces(out, replayed=False).faults
    assert first.rule == rule
    assert message in first.message


def test_durations_that_the_simulator_would_ignore_are_found(tmp_path: Path) -> None:
    made = workload(tp=4, dp=4)
    out = exported(tmp_path / "set", times=timing(made))
    assert validate_traces(out, replayed=False).faults == ()
    system(roofline_enabled=1)(out)
    (fault,) = validate_traces(out, replayed=False).faults
    assert (fault.rule, fault.rank) == ("roofline", 0)


def test_all_ranks_may_exchange_directly(tmp_path: Path) -> None:
    out = exported(tmp_path / "set")
    system(all_to_all_implementation=["oneDirect1"])(out)
    assert validate_traces(out, replayed=False).faults == ()


def test_a_set_without_the_inputs_has_no_rule_to_break(tmp_path: Path) -> None:
    out = exported(tmp_path / "set")
    (out / "network.yml").unlink()
    system(all_reduce_implementation=["nvls"])(out)
    assert validate_traces(out, replayed=False).faults == ()
