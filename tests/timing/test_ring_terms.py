"""What a ring's turns merge, and keys that are repeated for all heads, by hand."""

import json

import numpy as np
import pytest

from stagedb.frameworks.profiles import find_profile
from stagedb.graphs.model_graph import build_graph
from stagedb.lowering.columns import COLLECTIVE, Workload
from stagedb.lowering.program import IndexedGraph, lower
from stagedb.plans import Plan
from stagedb.systems import load_system, parse_system
from stagedb.timing.framework_terms import moved
from stagedb.timing.framework_timing import as_used_by
from stagedb.timing.node_graph import node_graph_of
from stagedb.timing.op_durations import time_ops
from tests.ir.tiny import card
from tests.timing.test_framework_terms import run
from tests.timing.test_fsdp_terms import moving
from tests.timing.test_hidden_communication import on

FORWARD, BACKWARD = "layer.0.attn.core", "layer.0.attn.core.input_gradient"


def ring(kv_heads: int = 2, **words: object) -> Workload:
    """Four heads of four elements; each of four ranks of cp has 8 of 32 tokens."""
    plan = Plan.from_mapping({"recipe": "torch", "seq_len": 32, "cp": 4, **words})
    graph = build_graph(card("llama", layers=1, kv_heads=kv_heads), plan.options)
    return lower(IndexedGraph.of(graph), plan).workload


def test_pytorch_merges_turns_in_fp32() -> None:
    """Rank 0: its own turn, and three turns of half its queries. 128 elements of queries, 64 of each of two keys."""
    system = on(merges="eager")
    columns, ns = run(ring(), system)
    took = dict(zip(columns.ops.name, ns.tolist(), strict=True))
    queries, half, keys = 128, 64, 2 * 64
    merged = half * (2 + 4 + 12 + 8 + 12) + 8 * queries
    assert took[f"{FORWARD}.turn.0"] == 1000 + moving(system, queries * (2 + 4))
    assert [took[f"{FORWARD}.turn.{turn}"] for turn in (1, 2, 3)] == [1000 + moving(system, merged)] * 3
    first = 4 * (queries + keys) + (2 + 8) * (queries + keys) + 8 * keys
    assert took[f"{BACKWARD}.turn.0"] == 1000 + moving(system, first)
    later = (2 + 8) * (half + keys) + 8 * queries + 8 * keys
    assert took[f"{BACKWARD}.turn.1"] == 1000 + moving(system, later)
    assert took[f"{FORWARD}.pack"] == 1000


def test_pytorch_joins_the_halves_of_keys_that_were_changed() -> None:
    """A turn with the first half of an earlier rank's keys: 8 queries and 4 keys of 4 heads of 4 elements."""
    dims = (1, 4, 4, 8, 4, 4)
    queries, keys = 128, 2 * 64
    assert moved(dims, first=False, backward=False, merges="eager") == queries * (2 + 4 + 12 + 8 + 12)
    assert moved(dims, first=False, backward=True, merges="eager") == 10 * (queries + keys) + (8 + 8) * 2 * keys


@pytest.mark.parametrize("kind", ["ring-allgather", "ring-alltoall"])
def test_a_recomputed_forward_copies_and_merges_its_turns_again(kind: str) -> None:
    columns, ns = run(ring(cp_kind=kind, recompute="full"), on(merges="eager", keys="repeated"))
    took = dict(zip(columns.ops.name, ns.tolist(), strict=True))
    for turn in range(4):
        assert took[f"{FORWARD}.turn.recompute.{turn}"] == took[f"{FORWARD}.turn.{turn}"] > 1000


def test_transformer_engine_adds_the_result_of_a_turn_in_one_kernel() -> None:
    system = on(merges="fused")
    columns, ns = run(ring(recipe="megatron"), system)
    took = dict(zip(columns.ops.name, ns.tolist(), strict=True))
    assert took[f"{FORWARD}.turn.0"] == 1000 + moving(system, 128 * 4)
    assert took[f"{FORWARD}.turn.1"] == took[f"{BACKWARD}.turn.1"] == 1000 + moving(system, 64 * 6)


@pytest.mark.parametrize("words", [{"cp": 1, "dp": 2}, {"cp": 2, "cp_kind": "ulysses"}])
def test_an_attention_without_turns_merges_nothing(words: dict[str, object]) -> None:
    _, ns = run(ring(4, **words), on(merges="eager"))
    assert set(ns.tolist()) == {1000}


def test_repeated_keys_are_copied_once_and_sent_for_all_heads() -> None:
    system = on(keys="repeated")
    columns, ns = run(ring(), system)
    took = dict(zip(columns.ops.name, ns.tolist(), strict=True))
    copied = 2 * 2 * (4 + 2) * 8 * 4
    assert took[f"{FORWARD}.turn.0"] == took[f"{BACKWARD}.turn.0"] == 1000 + moving(system, copied)
    assert took[f"{FORWARD}.turn.1"] == 1000


@pytest.mark.parametrize("kind", ["ring-allgather", "ring-alltoall"])
def test_a_ring_sends_repeated_keys_as_if_the_model_had_a_head_of_keys_for_each_of_queries(kind: str) -> None:
    def wires(kv_heads: int, keys: str) -> dict[str, tuple[int, object]]:
        made, system = ring(kv_heads, cp_kind=kind), on(keys=keys)
        lane = time_ops(made, node_graph_of(made, "axis", system.network(4)).lanes, system).lanes[0]
        ops = made.classes[0].ops
        sent = [op for op in np.flatnonzero(ops.type == COLLECTIVE).tolist() if ".core." in ops.name[op]]
        return {ops.name[op]: (int(lane.ns[op]), lane.wires[op]) for op in sent}

    assert wires(2, "repeated") == wires(4, "") == wires(4, "repeated")
    assert wires(2, "repeated") != wires(2, "")


def test_with_fewer_heads_of_keys_repeated_ones_are_merged_as_all_heads() -> None:
    _, few = run(ring(2), on(merges="eager", keys="repeated"))
    columns, many = run(ring(4), on(merges="eager", keys="repeated"))
    names = columns.ops.name
    assert few[names.index(f"{BACKWARD}.turn.2")] == many[names.index(f"{BACKWARD}.turn.2")]


def test_torchtitan_repeats_keys_and_a_system_file_has_the_words() -> None:
    used = as_used_by(load_system("h100"), find_profile("torchtitan"))
    assert (used.overlap.merges, used.overlap.keys) == ("eager", "repeated")
    assert as_used_by(load_system("h100"), find_profile("nemo")).overlap.merges == "fused"
    again = parse_system(json.dumps(used.to_dict()))
    assert again == used
