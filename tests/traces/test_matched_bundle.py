"""What ASTRA-sim gets means what the profile means: makespans by its published rules over the profile's steps."""

import dataclasses
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml

from stagedb.errors import UsageError
from stagedb.systems import Overlap, System, load_system
from stagedb.traces import Request, read_trace
from stagedb.traces import chakra_pb2 as pb
from stagedb.traces.exporting import trace_set
from stagedb.traces.set_validation import validate_traces
from tests.traces.astra_clock import finishes
from tests.traces.simulated import AS_SIMULATED, FLAT, MESH, RING, TWO, exported, profiled, ratio, workload_of
from tests.traces.synthetic import workload
from tests.traces.written import export_workload, files_of

LLAMA, SMALL = "llama3.2-1b", {"seq_len": 1024}

CASES: dict[str, tuple[System, str, dict[str, Any]]] = {
    "data parallel": (FLAT, "gpt2", {"dp": 4, "global_batch_size": 4, **SMALL}),
    "tensors": (FLAT, LLAMA, {"tp": 8, "sp": True, **SMALL}),
    "stages": (FLAT, "gpt2", {"pp": 2, "global_batch_size": 4, **SMALL}),
    "sharded": (FLAT, LLAMA, {"dp": 4, "zero": 3, "global_batch_size": 4, **SMALL}),
    "a ring of links": (RING, LLAMA, {"tp": 8, **SMALL}),
    "a mesh": (MESH, LLAMA, {"dp": 8, "global_batch_size": 8, **SMALL}),
    "messages in a mesh": (MESH, LLAMA, {"tp": 2, "pp": 2, "global_batch_size": 2, **SMALL}),
    "one switch of three degrees": (FLAT, LLAMA, {"tp": 2, "cp": 2, "dp": 2, "global_batch_size": 2, **SMALL}),
    "all ranks of two levels": (TWO, LLAMA, {"dp": 16, "zero": 3, "global_batch_size": 16, **SMALL}),
    "a node of each degree": (TWO, LLAMA, {"tp": 4, "pp": 2, "dp": 2, "global_batch_size": 4, **SMALL}),
    "uneven experts": (FLAT, "mixtral-8x7b", {"dp": 4, "ep": 4, "expert_load": (3, 1, 2, 2, 1, 1, 4, 2), **SMALL}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_simulator_takes_as_long_as_the_profile(tmp_path: Path, name: str) -> None:
    of, model, words = CASES[name]
    job = profiled(of, model, 2, **words)
    assert 0.98 < ratio(finishes(exported(job, tmp_path / "durations", timed=True)), job) < 1.02
    assert 0.95 < ratio(finishes(exported(job, tmp_path / "roofline", timed=False)), job) < 1.05


@pytest.mark.parametrize("preset", ["h100", "mi300x", "tpu-v5p"])
def test_presets_carry_their_efficiencies(tmp_path: Path, preset: str) -> None:
    of = dataclasses.replace(load_system(preset), overlap=AS_SIMULATED)
    job = profiled(of, LLAMA, 2, tp=8, dp=2, sp=True, seq_len=2048, global_batch_size=2)
    # Durations are in the traces, but for collectives: the profile has measured ones, a simulator computes its own.
    assert 0.95 < ratio(finishes(exported(job, tmp_path / "set", timed=True)), job) < 1.05


def test_a_group_that_leaves_its_node_uses_the_slow_links(tmp_path: Path) -> None:
    """The simulator runs it as one ring over its list. The cost model's own algorithms are faster by a quarter."""
    job = profiled(TWO, LLAMA, 2, tp=2, dp=8, global_batch_size=8, **SMALL)
    out = exported(job, tmp_path / "set", timed=True)
    assert 1 < ratio(finishes(out), job) < 1.25
    groups = json.loads((out / "llama3.2-1b-2.json").read_text())
    stored = trace_set(job.workload, system=TWO).groups
    assert groups.keys() == stored.keys()
    assert {gid: sorted(members) for gid, members in groups.items()} == stored
    assert [0, 2, 6, 4, 8, 10, 14, 12] in groups.values()


def test_degrees_on_the_same_links_are_one_level(tmp_path: Path) -> None:
    job = profiled(FLAT, LLAMA, 2, tp=2, cp=2, dp=2, global_batch_size=2, **SMALL)
    out = exported(job, tmp_path / "set", timed=False)
    assert yaml.safe_load((out / "network.yml").read_text())["npus_count"] == [8]
    assert json.loads((out / "system.json").read_text())["all-to-all-implementation"] == ["direct1"]


def test_durations_are_taken_where_the_traces_have_them(tmp_path: Path) -> None:
    job = profiled(FLAT, "gpt2", 2, dp=2, global_batch_size=2, **SMALL)
    for timed, compute in ((False, "roofline"), (True, "durations")):
        out = exported(job, tmp_path / compute, timed=timed)
        system = json.loads((out / "system.json").read_text())
        assert system["roofline-enabled"] == (not timed)
        # The simulator charges a reduction for the memory's bandwidth, which the profile does not.
        assert (system["local-mem-bw"] == 3350) == (not timed)
        assert json.loads((out / "manifest.json").read_text())["simulated"] == {"compute": compute}
        assert validate_traces(out).faults == ()


@pytest.mark.parametrize(
    ("streams", "words", "differs"),
    [
        ("axis", {"tp": 2, "dp": 2, "global_batch_size": 2}, True),
        ("axis", {"tp": 2, "pp": 2}, True),
        ("one", {"tp": 2, "dp": 2, "global_batch_size": 2}, False),
        ("axis", {"tp": 2}, False),
        ("axis", {"dp": 2, "global_batch_size": 2}, False),
    ],
)
def test_axes_that_overlap_in_the_profile_alone_are_a_difference(
    tmp_path: Path, streams: str, words: dict[str, Any], differs: bool
) -> None:
    of = dataclasses.replace(FLAT, overlap=Overlap("out-of-order", streams))
    job = profiled(of, "llama3.2-1b", 2, seq_len=64, **words)
    for timed in (True, False):
        out = exported(job, tmp_path / str(timed), timed=timed)
        (*found,) = json.loads((out / "manifest.json").read_text())["simulated"].get("differences", [])
        assert len(found) == (differs and timed)
        assert all("streams: one" in each for each in found)


def test_rounded_durations_of_compute_add_up(tmp_path: Path) -> None:
    job = profiled(FLAT, "gpt2", 2, dp=2, global_batch_size=2, seq_len=64)
    trace = read_trace(exported(job, tmp_path / "set", timed=True) / "gpt2-2.0.et")
    computes = [at for at, kind in enumerate(trace.types) if kind == pb.COMP_NODE]
    exact = [trace.attributes["duration_ns"][at] for at in computes]
    assert sum(ns < 500 for ns in exact) > len(exact) / 2, "the nearest microsecond would be far off"
    assert abs(sum(trace.micros[at] for at in computes) * 1000 - sum(exact)) < 10_000


@pytest.mark.parametrize("words", [{"compress": True}, {"format": "json"}])
def test_a_script_is_there_only_for_traces_that_it_can_run(tmp_path: Path, words: dict[str, Any]) -> None:
    export_workload(workload(), tmp_path / "set", **words)
    names = files_of(tmp_path / "set")
    assert "run.sh" not in names
    assert {"network.yml", "system.json", "memory.json"} <= names.keys()


def test_one_rank_has_no_simulator(tmp_path: Path) -> None:
    export_workload(workload(tp=1, dp=1, pp=1), tmp_path / "set")
    assert {"network.yml", "run.sh"}.isdisjoint(files_of(tmp_path / "set"))
    assert "simulated" not in json.loads((tmp_path / "set" / "manifest.json").read_text())
    assert validate_traces(tmp_path / "set").faults == ()
    with pytest.raises(UsageError, match=r"2 or more ranks: leave out --simulator"):
        Request(tmp_path / "other", simulator="astra-sim-analytical").check(1, None)


def test_the_size_of_an_uneven_exchange_is_that_of_the_fullest_member() -> None:
    made = workload_of("mixtral-8x7b", 2, tuple(sorted(CASES["uneven experts"][2].items())))
    exchanges = [row for row in trace_set(made, system=FLAT).job.traffic if row.kind == "all_to_all"]
    results = [
        int(columns.ops.result[op])
        for columns in made.classes
        for op in range(len(columns.ops))
        if columns.ops.kind[op] == "all_to_all"
    ]
    assert {row.bytes for row in exchanges} == {max(results)}


def test_small_messages_are_not_cut(tmp_path: Path) -> None:
    slow = dataclasses.replace(
        TWO, dimensions=tuple(dataclasses.replace(each, latency=Fraction(10**6)) for each in TWO.dimensions)
    )
    job = profiled(slow, "gpt2", 2, dp=8, global_batch_size=8, seq_len=64)
    out = exported(job, tmp_path / "set", timed=True)
    assert json.loads((out / "system.json").read_text())["preferred-dataset-splits"] == 1


def test_large_messages_of_all_ranks_are_cut_so_that_levels_work_at_the_same_time(tmp_path: Path) -> None:
    job = profiled(TWO, LLAMA, 2, dp=16, zero=3, global_batch_size=16, **SMALL)
    out = exported(job, tmp_path / "set", timed=True)
    assert json.loads((out / "system.json").read_text())["preferred-dataset-splits"] > 1


def test_an_exchange_over_two_levels_sends_all_of_its_bytes_on_each(tmp_path: Path) -> None:
    job = profiled(TWO, "mixtral-8x7b", 2, dp=8, ep=8, global_batch_size=8, **SMALL)
    assert 0.95 < ratio(finishes(exported(job, tmp_path / "set", timed=True)), job) < 1.05
