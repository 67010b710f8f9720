"""Bounds of the peak hold for pipelines that leave parameters gathered and gradients whole, and are near to it."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.memory import memory_of, peak_of
from stagedb.plans import Plan
from stagedb.schedules import Order
from stagedb.search.branches import PlanSet, SearchPlace, SetKind
from stagedb.search.peak_bounds import StageMoment, moments
from stagedb.search.searching import places_of
from stagedb.search.space import groups_of
from tests.sampling import draws
from tests.search.test_searching import H100, asked, small

GROUPS = groups_of(["zero", "hsdp", "sp", "recompute", "schedule"])


def drawn(place: SearchPlace, draw: random.Random, count: int) -> Iterator[tuple[PlanSet, dict[str, Any], int]]:
    """Plans over several stages: the cell that each is in, with its bounds, its words, and the peak."""
    groups = [each for each in place.groups() if each.words["pp"] > 1]
    while count:
        group = draw.choice(groups)
        cells = [each for each in place.opened(group, True).branches if each.level is SetKind.CELL]
        if not cells:
            continue
        cell = draw.choice(cells)
        words = draw.choice(list(place.space.plans(cell.words)))
        try:
            plan = Plan.from_mapping(words)
            plan.check(place.space.sizes)
            peak = peak_of(memory_of(place.trials.copied(plan)))
        except UsageError:
            continue
        count -= 1
        yield cell, words, peak


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("model", ["llama3-8b", "qwen3-30b-a3b", "deepseek-v2-lite"])
def test_no_plan_of_a_pipeline_holds_less_than_its_bounds(model: str, seed: int) -> None:
    card = small(model, 8)
    words = {"global_batch_size": 32, "seq_len": 1024, "recipe": "torch"}
    request = asked(card, 16, GROUPS, words=words, room=1 << 60)
    (place,) = places_of(request, card, [H100])
    for cell, words, peak in drawn(place, random.Random(f"{model} {seed}"), draws(6, 2)):
        assert cell.peak <= peak, words
        plan = Plan.from_mapping(words)
        bound = place.bounds.peak(plan, place.bounds.chunks(plan))
        assert bound <= peak, words


@pytest.mark.parametrize("zero", range(4))
def test_what_a_pipeline_keeps_whole_is_in_the_bound(zero: int) -> None:
    card = small("deepseek-v2-lite", 8)
    words = {"global_batch_size": 256, "seq_len": 256, "recipe": "torch", "pp": 4, "dp": 16, "zero": zero}
    request = asked(card, 64, GROUPS, words=words)
    (place,) = places_of(request, card, [H100])
    plan = Plan.from_mapping({**words, "recompute": "full"})
    peak = peak_of(memory_of(place.trials.copied(plan)))
    bound = place.bounds.peak(plan, place.bounds.chunks(plan))
    assert (0.7 if zero == 3 else 0.8) * peak < bound <= peak


def test_moments_of_a_stage() -> None:
    def stage(number: int, **words: Any) -> Order:
        return Plan.from_mapping({"pp": 2, "global_batch_size": 4, "seq_len": 64, **words}).tasks()[number]

    def of(
        flying: int, opened: bool, summing: bool, returned: bool, summed: bool, *, turning: bool = False
    ) -> StageMoment:
        return StageMoment((flying,), (opened,), (summing,), (returned,), (summed,), (turning,))

    # Two forwards, then a forward behind each backward. What another moment has, too, is left out.
    assert set(moments(stage(0), 1, None)) == {of(2, True, True, False, True), of(1, True, True, True, True)}
    # On the last stage the loss is differentiated next, but not when a backward has just ended.
    assert set(moments(stage(1), 1, 0)) == {
        of(1, True, True, False, True, turning=True),
        of(0, True, True, True, True),
    }
    # All forwards, then all backwards.
    every = moments(stage(0, schedule="gpipe"), 1, None)
    assert set(every) == {of(4, True, False, False, False), of(3, True, True, True, True)}


def test_experts_of_each_rank_of_tp_are_shared_by_more_ranks_than_other_weights() -> None:
    card = small("gpt-oss-20b", 4)
    words = {"global_batch_size": 8, "seq_len": 512, "recipe": "megatron", "cp_kind": "ulysses", "expert_tp": False}
    words |= {"tp": 2, "cp": 2, "pp": 1, "ep": 1, "micro_batch_size": 1}
    (place,) = places_of(asked(card, 4, GROUPS, words=words, room=1 << 60), card, [H100])
    group = next(place.groups())
    plan = Plan.from_mapping({**group.words, "zero": 3, "recompute": "full"})
    peak = peak_of(memory_of(place.trials.copied(plan)))
    assert 0.5 * peak < place.bounded(group).peak <= peak


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("recipe", ["torch", "megatron"])
def test_what_the_loss_takes_is_in_the_bound(recipe: str, recompute: str) -> None:
    """Where few parameters are left to gather, the bound is the peak of a plan with one stage."""
    card = small("llama3-8b", 8)
    words = {"global_batch_size": 8, "seq_len": 4096, "recipe": recipe, "micro_batch_size": 4, "pp": 1, "dp": 2}
    (place,) = places_of(asked(card, 2, ("recompute",), words=words, room=1 << 60), card, [H100])
    plan = Plan.from_mapping({**words, "recompute": recompute})
    peak = peak_of(memory_of(place.trials.copied(plan)))
    bound = place.bounds.peak(plan, place.bounds.chunks(plan))
    assert 0.95 * peak < bound <= peak
    assert place.bounds.loss(plan) > 0.09 * peak
    (group,) = (each for each in place.groups() if each.words["tp"] == 1)
    cells = place.opened(place.bounded(group), True).branches
    (cell,) = (each for each in cells if each.words["recompute"] == recompute)
    assert 0.9 * peak < cell.peak <= peak
