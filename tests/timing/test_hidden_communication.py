"""Communication in pieces during computing: how much of it is left, by hand."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stagedb.frameworks.profiles import FRAMEWORK_PROFILES, find_profile
from stagedb.graphs.model_graph import build_graph
from stagedb.lowering import program_of
from stagedb.lowering.columns import COLLECTIVE, ClassColumns, Ints, Workload, issued_on
from stagedb.lowering.program import IndexedGraph, lower
from stagedb.plans import Plan
from stagedb.systems import System, load_system, parse_system
from stagedb.timing import timed_step
from stagedb.timing.framework_terms import hidden, in_buckets
from stagedb.timing.framework_timing import as_used_by
from stagedb.timing.node_graph import node_graph_of
from stagedb.timing.op_durations import LaneDurations, time_ops
from tests.ir.tiny import card


def workload(**words: object) -> Workload:
    plan = Plan.from_mapping({"recipe": "megatron", "seq_len": 32, **words})
    graph = build_graph(card("llama", layers=4, kv_heads=4), plan.options)
    return lower(IndexedGraph.of(graph), plan).workload


def left(made: Workload, system: System, took: int = 1000) -> tuple[ClassColumns, Ints]:
    """The durations of the first lane where every op takes so long, after hiding."""
    lanes = node_graph_of(made, "axis", system.network(len(made.ranks))).lanes
    durations = time_ops(made, lanes, system)
    even = tuple(replace(each, ns=np.full(len(each.ns), took)) for each in durations.lanes)
    columns = {each.number: each for each in made.classes}[lanes[0].rank_class]
    chunked = hidden(made, lanes, replace(durations, lanes=even), system)
    found: LaneDurations = in_buckets(made, [lane.rank_class for lane in lanes], chunked, system).lanes[0]
    return columns, found.ns


def on(**overlap: Any) -> System:
    system = load_system("h100")
    return replace(system, overlap=replace(system.overlap, **overlap))


def test_nothing_is_hidden_without_a_framework() -> None:
    made = workload(tp=4, sp=True)
    _, ns = left(made, on())
    assert set(ns.tolist()) == {1000}


@pytest.mark.parametrize("tp", [2, 4])
def test_a_chunk_of_a_collective_of_tp_is_left(tp: int) -> None:
    """A collective and its matmul, equally long, in as many chunks as ranks: the first chunk waits for no computing."""
    columns, ns = left(workload(tp=tp, sp=True), on(chunked=("tp",)))
    ops = columns.ops
    by_name = dict(zip(ops.name, ns.tolist(), strict=True))
    gathers = [name for name in by_name if name.endswith("all_gather.tp") and name.startswith("layer.0.")]
    assert gathers
    assert {by_name[name] for name in gathers} <= {1000 - 1000 * (tp - 1) // tp, 1000}
    assert min(by_name[name] for name in gathers) == 1000 - 1000 * (tp - 1) // tp
    changed = {kind for kind, took in zip(ops.kind, ns.tolist(), strict=True) if took != 1000}
    assert changed == {"all_gather", "reduce_scatter"}


def test_gradients_and_parameters_in_buckets() -> None:
    """Ten buckets of a tenth: one is left of each, while there is computing enough."""
    made = workload(dp=4, zero=1)
    columns, _ = left(made, on())
    ops = columns.ops
    sizes = {
        ops.name[op]: max(int(ops.operand[op]), int(ops.result[op]))
        for op in np.flatnonzero(ops.type == COLLECTIVE).tolist()
    }
    (scatter,) = [name for name in sizes if "scatter" in name]
    (update,) = [name for name in sizes if "update" in name]
    _, ns = left(made, on(reduced=-(-sizes[scatter] // 10), gathered=-(-sizes[update] // 4)))
    by_name = dict(zip(ops.name, ns.tolist(), strict=True))
    assert (by_name[scatter], by_name[update]) == (100, 250)
    _, ns = left(made, on(reduced=-(-sizes[scatter] // 10)))
    by_name = dict(zip(ops.name, ns.tolist(), strict=True))
    assert (by_name[scatter], by_name[update]) == (100, 1000)


def test_computing_hides_no_more_than_it_takes() -> None:
    made = workload(dp=4, zero=1, tp=4, sp=True)
    lanes = node_graph_of(made, "axis", on().network(16)).lanes
    durations = time_ops(made, lanes, on())
    columns = {each.number: each for each in made.classes}[lanes[0].rank_class]
    free = tuple(replace(each, ns=np.where(columns.ops.type == COLLECTIVE, 1000, 0)) for each in durations.lanes)
    system = on(chunked=("tp",), reduced=1, gathered=1)
    found = hidden(made, lanes, replace(durations, lanes=free), system)
    assert found.lanes[0].ns.tolist() == free[0].ns.tolist()


def test_a_framework_makes_a_step_shorter_and_is_part_of_the_system() -> None:
    made = workload(tp=4, sp=True, dp=4, zero=1)
    plain, nemo = load_system("h100"), as_used_by(load_system("h100"), find_profile("nemo"))
    assert nemo.overlap.framework == "nemo"
    assert timed_step(made, nemo, None, ())[1].step < timed_step(made, plain, None, ())[1].step
    assert as_used_by(nemo, find_profile("nemo")) == nemo


@pytest.mark.parametrize("name", FRAMEWORK_PROFILES)
def test_a_system_with_a_framework_reads_back(name: str) -> None:
    system = as_used_by(load_system("b200"), find_profile(name))
    assert parse_system(json.dumps(system.to_dict())) == system


@pytest.mark.parametrize(("near", "left_over"), [(700, 0), (1000, 0), (1600, 600)])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_tokens_go_through_both_networks_at_the_same_time(near: int, left_over: int, recompute: str) -> None:
    """The exchange inside nodes takes what it is longer than the one between them, in a layer and direction each."""
    plan = Plan.from_mapping(
        {"dp": 4, "ep": 4, "seq_len": 32, "dispatch": "nodes", "node_ranks": 2, "recompute": recompute}
    )
    graph = build_graph(card("moe", layers=3), plan.options)
    made = lower(IndexedGraph.of(graph), plan).workload
    system = on()
    lanes = node_graph_of(made, "axis", system.network(len(made.ranks))).lanes
    durations = time_ops(made, lanes, system)
    columns = {each.number: each for each in made.classes}[lanes[0].rank_class]
    axis = np.array(columns.ops.axis)
    lasts = np.where(axis == "epr", near, 1000)
    even = tuple(replace(each, ns=lasts.astype(np.int64)) for each in durations.lanes)
    found = hidden(made, lanes, replace(durations, lanes=even), system).lanes[0].ns
    assert set(found[axis == "epr"].tolist()) == {left_over}
    assert set(found[axis != "epr"].tolist()) == {1000}
    rows = issued_on(columns.ops, ("epn", "epr")).tolist()
    assert len(rows) == 3 * (4 if recompute == "none" else 5) * 2
    origin = columns.origins.layer
    for first, second in zip(rows[::2], rows[1::2], strict=True):
        assert {axis[first], axis[second]} == {"epn", "epr"}
        assert origin[first] == origin[second]


def test_copies_and_sums_of_tokens_have_no_kernels_of_their_own() -> None:
    plan = Plan.from_mapping({"dp": 4, "ep": 4, "seq_len": 32, "dispatch": "nodes", "node_ranks": 2})
    graph = build_graph(card("moe"), plan.options)
    made = lower(IndexedGraph.of(graph), plan).workload
    ops = made.classes[0].ops
    inside = {name.split(".", 2)[-1]: size for name, size in zip(ops.name, ops.bytes.tolist(), strict=True)}
    for name in ("ffn.pack", "ffn.relay", "ffn.relay_sum", "ffn.sum"):
        assert inside[name] == 0, name
    assert inside["ffn.permute"] > 0


@pytest.mark.parametrize("layers", [3, 4])
@pytest.mark.parametrize("operators", [("ffn.spread",), ("ffn.relay", "ffn.spread"), ("ffn.dispatch",)])
def test_an_exchange_that_runs_again_alone_keeps_its_time(layers: int, operators: tuple[str, ...]) -> None:
    words = {"recipe": "megatron", "dp": 8, "ep": 4, "seq_len": 32, "dispatch": "nodes", "node_ranks": 2}
    plan = Plan.from_mapping({**words, "recompute": "operators", "recompute_operators": operators})
    made = program_of(card("moe", layers=layers), plan).workload
    lanes = node_graph_of(made, "axis", on().network(len(made.ranks))).lanes
    durations = time_ops(made, lanes, on())
    columns = {each.number: each for each in made.classes}[lanes[0].rank_class]
    even = tuple(replace(each, ns=np.full(len(each.ns), 1000)) for each in durations.lanes)
    found = hidden(made, lanes, replace(durations, lanes=even), on()).lanes[0].ns
    axis, phase = np.array(columns.ops.axis), np.array(columns.ops.phase)
    again = int(((axis == "epr") & (phase == "recompute")).sum())
    assert again == (0 if operators == ("ffn.dispatch",) else layers)
    assert int((found[axis == "epr"] == 1000).sum()) == again
    assert set(found[axis == "epn"].tolist()) == {1000}
