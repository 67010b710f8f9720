"""Whole experts on ranks of tp that have the same tokens: what each computes, holds and sends, and what is refused."""

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest

from stagedb.errors import UsageError
from stagedb.lowering.columns import COLLECTIVE, ClassColumns, Workload
from stagedb.memory import Category, memory_of
from stagedb.models import Card, load_card
from tests import lowered
from tests.ir.tiny import card

TINY: Card = dataclasses.replace(card("deepseek", layers=3), kv_heads=4, max_positions=64)
DECODE: dict[str, Any] = {"workflow": "decode", "cache_len": 16, "micro_batch_size": 8}
PREFILL: dict[str, Any] = {"workflow": "prefill", "seq_len": 16, "micro_batch_size": 2}
OF_TP: dict[str, Any] = {"tp": 4, "ep": 4, "expert_tp": False}

STEPS: dict[str, dict[str, Any]] = {
    "decode": DECODE,
    "prefill": PREFILL,
    "mixed": {"workflow": "mixed", "requests": ["1x12+4", "4x1+16"]},
    "speculative": {"workflow": "speculative", "cache_len": 16, "seq_len": 4, "micro_batch_size": 4, "draft": "other"},
    "evaluation": {"workflow": "forward-only", "seq_len": 16, "micro_batch_size": 2},
}


def flops_of(workload: Workload, part: str) -> int:
    """The FLOPs of all ranks in operators with this in their names."""
    ranks = Counter(workload.ranks.number.tolist())
    return sum(ranks[each.number] * int(each.ops.flops[_named(each, part)].sum()) for each in workload.classes)


def _named(columns: ClassColumns, part: str) -> np.ndarray[Any, Any]:
    return np.array([part in name for name in columns.ops.name])


def calls(columns: ClassColumns) -> list[tuple[str, str, int]]:
    ops = columns.ops
    return sorted((ops.kind[at], ops.axis[at], int(ops.size[at])) for at in np.flatnonzero(ops.type == COLLECTIVE))


@pytest.mark.parametrize("step", STEPS)
def test_ranks_compute_all_experts_together_and_the_router_each(step: str) -> None:
    alone, shared = (lowered.workload(TINY, **STEPS[step], **words) for words in ({}, OF_TP))
    for part in ("ffn.experts", "ffn.shared", "attn", "head"):
        assert flops_of(shared, part) == flops_of(alone, part) > 0, part
    assert flops_of(shared, "ffn.router") == 4 * flops_of(alone, "ffn.router") > 0
    for at in range(4):
        own = shared.class_of(at)
        assert int(own.ops.flops[_named(own, "ffn.experts")].sum()) * 4 == flops_of(alone, "ffn.experts")


@pytest.mark.parametrize("step", STEPS)
def test_nothing_is_sent_but_what_tp_adds_up(step: str) -> None:
    """The all-reduces are those of experts that tp cuts, if their sums are added with those of shared experts."""
    cut, whole = (lowered.workload(TINY, **STEPS[step], **words) for words in ({"tp": 4}, OF_TP))
    assert "ep" not in whole.groups.axis
    (columns,) = whole.classes
    assert {axis for _, axis, _ in calls(columns)} == {"tp"}
    assert calls(columns) == calls(cut.classes[0])


def test_the_all_reduces_are_two_a_layer_of_the_hidden_states() -> None:
    """8 requests of one token, 16 values of 2 bytes: behind the attention, and behind the experts with the shared
    ones; and one behind the embedding."""
    (columns,) = lowered.workload(TINY, **DECODE, **OF_TP).classes
    reduced = [call for call in calls(columns) if call[0] == "all_reduce"]
    assert reduced == [("all_reduce", "tp", 8 * 16 * 2)] * (2 * 3 + 1)


def test_a_rank_has_whole_experts_alone() -> None:
    """deepseek-v3, bf16: 58 layers of 256 experts, 3 matrices of 7168 x 2048."""
    model, words = load_card("deepseek-v3"), {"workflow": "decode", "cache_len": 512, "micro_batch_size": 4}
    held = {
        name: memory_of(lowered.program(model, **words, **layout))[0].usage.before()
        for name, layout in {"alone": {}, "of tp": {"tp": 8, "ep": 8, "expert_tp": False}, "cut": {"tp": 8}}.items()
    }
    experts = 58 * 256 * 3 * 7168 * 2048 * 2
    weights = {name: each[Category.PARAMETERS] for name, each in held.items()}
    assert weights["of tp"] == weights["cut"]
    assert weights["alone"] > experts > weights["of tp"] - experts // 8
    program = lowered.program(model, **words, tp=8, ep=8, expert_tp=False)
    shapes = {
        t.name: (t.local, t.layout) for t in program.graph.tensors if t.role == "weight" and "ffn.experts" in t.name
    }
    for local, layout in shapes.values():
        assert local[0] == "E/(ep*tp)"
        assert set(layout) == {"ep:partitioned(experts)", "tp:partitioned(experts)"}
    assert held["of tp"][Category.CACHE] == held["cut"][Category.CACHE]


@pytest.mark.parametrize(
    ("load", "words", "expected"),
    [
        ((3, 1, 2, 2), OF_TP, [3, 1, 2, 2]),
        ((4, 0, 2, 2), {"tp": 2, "ep": 2, "expert_tp": False}, [4, 4]),
        ((4, 2, 1, 1), {"tp": 2, "ep": 2, "expert_tp": False}, [6, 2]),
        ((4, 2, 1, 1), {"tp": 2, "ep": 2, "expert_tp": False, "pp": 3}, [6, 2]),
        # Each of two ranks of dp has all experts, or half of them: then the tokens of both come.
        ((4, 3, 1, 0), {"tp": 2, "dp": 2, "ep": 2, "expert_tp": False}, [7, 1, 7, 1]),
        ((4, 3, 1, 0), {"tp": 2, "dp": 2, "ep": 4, "expert_tp": False}, [2 * 4, 2 * 1, 2 * 3, 0]),
    ],
)
def test_an_uneven_load_is_that_of_a_rank_s_own_experts(
    load: tuple[int, ...], words: dict[str, Any], expected: list[int]
) -> None:
    """expected: of a stage's ranks, in the load of one rank's tokens."""
    alone = flops_of(lowered.workload(TINY, **DECODE, expert_load=load), "ffn.experts")
    shared = lowered.workload(TINY, **DECODE, expert_load=load, **words)
    found = Counter[int]()
    for rank in range(len(shared.ranks)):
        columns = shared.class_of(rank)
        found[rank % len(expected)] += int(columns.ops.flops[_named(columns, "ffn.experts")].sum())
    assert found == {at: own * alone // sum(load) for at, own in enumerate(expected)}


def test_tokens_are_exchanged_only_by_ranks_of_other_requests() -> None:
    made = lowered.workload(TINY, **DECODE, tp=2, dp=2, ep=4, expert_tp=False)
    at = [axis == "ep" for axis in made.groups.axis]
    sizes = np.repeat(at, made.groups.sizes)
    assert made.groups.ranks[sizes].reshape(-1, 2).tolist() == [[0, 2], [1, 3]]
    (columns,) = made.classes
    # Each sends the choices of its 8 tokens that are for its own half of the experts.
    assert [size for kind, axis, size in calls(columns) if axis == "ep"] == [8 * 2 // 2 * 16 * 2] * 4


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({**OF_TP, "ep": 2}, "ep 2 ranks with different experts are no multiple of them"),
        ({**OF_TP, "ep": 1}, "ep 1 ranks with different experts are no multiple of them"),
        ({**OF_TP, "ep": 8, "dp": 2}, "ep 8 does not divide the 4 experts"),
        ({**OF_TP, "dispatch": "ranks"}, "sends a token to its own experts alone"),
        (
            {**OF_TP, "overlap_experts": True, "global_batch_size": 16},
            "with ep 4 no tokens are exchanged, so that .* hides nothing",
        ),
        ({**OF_TP, "tp": 2, "ep": 4, "dp": 2, "rank_order": ("dp", "cp", "tp", "pp")}, "puts dp inside of tp"),
        ({**OF_TP, "workflow": "training", "cache_len": 0, "seq_len": 16}, "as no step of training does"),
    ],
)
def test_what_ranks_with_the_same_tokens_cannot_have(words: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        lowered.workload(TINY, **{**DECODE, **words})


def test_a_dense_model_has_no_experts_of_tp() -> None:
    with pytest.raises(UsageError, match="for a model with experts"):
        lowered.workload(card("llama"), workflow="decode", cache_len=4, **{**OF_TP, "tp": 2, "ep": 2})
