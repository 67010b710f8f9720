"""Copies of experts: which experts have some, where they are, and what ranks then compute, hold and send."""

import dataclasses
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.ir.operators import Array, RankPlace, Route
from stagedb.lowering.columns import COLLECTIVE, Workload
from stagedb.memory import Category, memory_of
from stagedb.models import load_card
from stagedb.plans import GraphOptions
from stagedb.plans.token_copies import numbers_of_copies, placed
from tests import lowered
from tests.ir.tiny import card
from tests.semantics.test_serving import TOKENS, Serving, agree, by_position, whole
from tests.workflows.test_experts_of_tp import TINY, flops_of

DECODE: dict[str, Any] = {"workflow": "decode", "cache_len": 16, "micro_batch_size": 8}


def test_the_example_of_eplb_has_its_copies() -> None:
    """The first layer of the example in DeepSeek's README: 12 experts, 16 places, 8 accelerators of two each."""
    load = [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86]
    assert numbers_of_copies(load, 4) == [1, 2, 1, 1, 2, 2, 1, 1, 1, 1, 2, 1]
    ranks = placed(load, 4, 8)
    assert [len(own) for own in ranks] == [2] * 8
    assert sum(choices for own in ranks for _, choices in own) == sum(load)
    assert max(sum(choices for _, choices in own) for own in ranks) < 2 * sum(load) // 8


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=2, max_size=9), st.integers(0, 7), st.integers(1, 4))
def test_copies_share_what_their_expert_has(load: list[int], redundant: int, ranks: int) -> None:
    redundant += -(len(load) + redundant) % ranks
    counts = numbers_of_copies(load, redundant)
    assert sum(counts) == len(load) + redundant
    # No copy would be of more use elsewhere: the last one that an expert got found no larger load.
    largest = max(Fraction(each, count) for each, count in zip(load, counts, strict=True))
    for each, count in zip(load, counts, strict=True):
        assert count == 1 or Fraction(each, count - 1) >= largest
    found: dict[int, list[int]] = {expert: [] for expert in range(len(load))}
    for own in placed(load, redundant, ranks):
        assert len(own) == (len(load) + redundant) // ranks
        for expert, choices in own:
            found[expert].append(choices)
    assert {expert: (len(parts), sum(parts)) for expert, parts in found.items()} == {
        expert: (counts[expert], load[expert]) for expert in range(len(load))
    }
    assert all(max(parts) - min(parts) <= 1 for parts in found.values())


def rank_flops(workload: Workload, ranks: int) -> list[int]:
    found = []
    for rank in range(ranks):
        columns = workload.class_of(rank)
        named = np.array(["ffn.experts" in name for name in columns.ops.name])
        found.append(int(columns.ops.flops[named].sum()))
    return found


def test_a_hot_expert_is_computed_by_several_ranks() -> None:
    """16 choices of a rank's 8 tokens, half of them for expert 0, over two ranks with two copies of it."""
    load = (8, 4, 3, 1)
    plain = lowered.workload(TINY, **DECODE, dp=2, ep=2, expert_load=load)
    copied = lowered.workload(TINY, **DECODE, dp=2, ep=2, expert_load=load, redundant_experts=2)
    one = flops_of(plain, "ffn.experts") // sum(load)
    assert rank_flops(plain, 2) == [12 * one, 4 * one]
    # Expert 0 has both: with one its choices are 4 + 4, each as many as those of expert 1, and the first has the next.
    expected = [sum(choices for _, choices in own) for own in placed(load, 2, 2)]
    assert sorted(expected) == [8, 8]
    assert rank_flops(copied, 2) == [own * one for own in expected]


@pytest.mark.parametrize(
    "words", [{"dp": 4, "ep": 4}, {"tp": 4, "ep": 4, "expert_tp": False}, {"dp": 2, "tp": 2, "ep": 2}]
)
def test_copies_compute_what_the_experts_do(words: dict[str, Any]) -> None:
    for load in ((), (8, 4, 3, 1)):
        plain, copied = (
            lowered.workload(TINY, **DECODE, **words, expert_load=load, redundant_experts=more) for more in (0, 4)
        )
        for part in ("ffn.experts", "ffn.router", "ffn.shared"):
            assert flops_of(copied, part) == flops_of(plain, part) > 0, part


def test_a_rank_holds_its_part_of_the_copies() -> None:
    """deepseek-v3, bf16: in 58 layers 4 of 32 copies on each of 8 ranks, 3 matrices of 7168 x 2048."""
    model, words = load_card("deepseek-v3"), {"workflow": "decode", "cache_len": 64, "micro_batch_size": 8}
    plain, copied = (
        memory_of(lowered.program(model, **words, dp=8, ep=8, redundant_experts=more))[0].usage.before()
        for more in (0, 32)
    )
    assert copied[Category.PARAMETERS] - plain[Category.PARAMETERS] == 58 * 4 * 3 * 7168 * 2048 * 2
    assert copied[Category.CACHE] == plain[Category.CACHE]


def test_what_is_sent_is_as_much_as_without_copies() -> None:
    def sent(more: int) -> list[int]:
        columns = lowered.workload(TINY, **DECODE, dp=4, ep=4, redundant_experts=more).classes[0]
        own = (columns.ops.type == COLLECTIVE) & np.array([axis == "ep" for axis in columns.ops.axis])
        return [int(size) for size in columns.ops.operand[own]]

    assert sent(0) == sent(4) != []


PLACES = [0, 1, 2, 3, 1, 3]
"""The experts that are in the places of a rank of ep, one behind another, with copies of two."""


def by_copy(route: Route, place: RankPlace, inputs: list[Array]) -> list[Array]:
    """The experts of `by_position`: copies of one take turns by the place of a token in the sequence."""
    slots = place.sizes["experts"]
    logical = RankPlace({**place.sizes, "experts": 4}, place.starts, place.lengths, before=place.before)
    (order,) = by_position(route, logical, inputs)
    found, taken = np.empty(order.size, np.int64), Counter[int]()
    for at, expert in enumerate((order % 4).reshape(-1).tolist()):
        copies = [slot for slot in range(slots) if PLACES[slot] == expert]
        slot = copies[(at + place.before) % len(copies)]
        found[at] = taken[slot] * slots + slot
        taken[slot] += 1
    return [found.reshape(order.shape)]


@pytest.mark.parametrize("degrees", [{}, {"ep": 2, "dp": 2}, {"ep": 2, "dp": 2, "tp": 2}, {"tp": 2}], ids=str)
@pytest.mark.parametrize("style", ["moe", "deepseek"])
def test_ranks_with_copies_make_what_one_without_makes(
    style: str, degrees: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = dataclasses.replace(card(style), max_positions=64)
    options: dict[str, Any] = {"workflow": "prefill", "expert_tp": degrees != {"tp": 2}}
    reference, graph = (build_graph(model, GraphOptions(**options, redundant_experts=more)) for more in (0, 2))
    monkeypatch.setattr(Route, "run", by_position)
    expected = whole(reference, TOKENS)
    plain = Serving(reference)
    monkeypatch.setattr(Route, "run", by_copy)
    some = Serving(graph, **degrees)
    some.tokens = plain.tokens
    for key, own in plain.weights.items():
        some.weights[key] = own[PLACES] if ".experts." in key[0] else own
    agree(some.run(TOKENS), expected)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({}, "with ep 1 each rank has all experts, so that a copy of one takes no work off another"),
        ({"dp": 4, "ep": 4, "redundant_experts": 3}, "ep 4 does not divide the 4 experts and their 3 copies"),
        ({"dp": 2, "ep": 2, "dispatch": "ranks"}, "which is not built with .*ranks"),
        ({"dp": 2, "ep": 2, "capacity_factor": 1.5}, "which is not built with .*1.5"),
        ({"dp": 2, "ep": 2, "workflow": "training", "cache_len": 0, "seq_len": 16}, "redundant"),
    ],
)
def test_copies_that_are_not_built_are_refused(words: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        lowered.workload(TINY, **{**DECODE, "redundant_experts": 2, **words})
