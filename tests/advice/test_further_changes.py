"""Changes that follow from others: pairs that are better than each alone, and as few layers that recompute as fit."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.plans import Plan
from stagedb.search.advising import LEAST_SAVING, Advice, advise, changed_words, neighbours
from stagedb.search.bounds import Bounds
from stagedb.search.trials import Trials
from tests.search.test_searching import H100, small

CARD = small("llama3-8b", 8)
WORDS: Mapping[str, Any] = {"recipe": "megatron", "global_batch_size": 32, "seq_len": 4096}


def advised(words: Mapping[str, Any], bounded: bool) -> tuple[Trials, Plan, Advice]:
    plan = Plan.from_mapping({**WORDS, **words})
    bounds = Bounds(lambda options: build_graph(CARD, options), build_graph(CARD, plan.options).sizes, H100)
    trials = Trials(bounds.graph, bounds.sizes, H100, processes=1)

    def bound_of(each: Plan) -> tuple[int, int]:
        each.check(bounds.sizes)
        found = bounds.bound(each, bounds.chunks(each))
        return bounds.rehearsed(each, found).step, found.peak

    return trials, plan, advise(trials, plan, bound_of_plan=bound_of) if bounded else advise(trials, plan)


def pairs(trials: Trials, plan: Plan) -> Iterator[tuple[int, int]]:
    """Step and peak of all pairs of changes."""
    near = neighbours(plan, trials.sizes)
    for at, first in enumerate(near):
        for other in near[at + 1 :]:
            if not first.keys() & other.keys():
                try:
                    found = trials.outcome(Plan.from_mapping(changed_words(plan, {**first, **other})))
                except UsageError:
                    continue
                yield found.step, found.peak


@pytest.mark.parametrize(
    "words",
    [
        {"tp": 4, "dp": 2, "recompute": "full"},
        {"tp": 2, "pp": 2, "dp": 2, "sp": True},
        {"dp": 8, "micro_batch_size": 4},
    ],
    ids=str,
)
def test_the_best_pair_is_the_best_of_all(words: Mapping[str, Any]) -> None:
    trials, plan, found = advised(words, bounded=True)
    room = H100.accelerator.room
    assert room is not None
    every = [step for step, peak in pairs(trials, plan) if peak <= room]
    assert found.changes[0].fits and found.changes[0].outcome.step <= min(every) * (1 + LEAST_SAVING)


def test_bounds_change_nothing() -> None:
    words = {"tp": 4, "dp": 2, "recompute": "full"}
    first, other = (advised(words, bounded)[2] for bounded in (True, False))
    best = [[(each.name, each.outcome) for each in found.changes[:1]] for found in (first, other)]
    assert best[0] == best[1]


def test_no_more_first_layers_recompute_than_the_memory_asks_for() -> None:
    words = {"pp": 2, "dp": 4, "micro_batch_size": 4, "recompute": "full", "recompute_first": 4, "seq_len": 8192}
    trials, plan, found = advised(words, bounded=True)
    room = H100.accelerator.room
    assert room is not None and found.fits
    (fewest,) = [each for each in found.changes if set(each.change) == {"recompute_first"}]
    first = fewest.change["recompute_first"]
    assert fewest.fits and fewest.saving > 0
    fewer = [trials.outcome(Plan.from_mapping({**plan.to_dict(), "recompute_first": each})) for each in range(1, first)]
    assert all(each.peak > room or each.step >= fewest.outcome.step for each in fewer)
    without = [each for each in found.changes if each.words.get("recompute") == "none"]
    assert all("recompute_first" not in each.words for each in without)


def test_no_more_layers_recompute_than_the_memory_asks_for() -> None:
    words = {"pp": 2, "dp": 4, "micro_batch_size": 4, "recompute": "full", "seq_len": 8192}
    trials, plan, found = advised(words, bounded=True)
    room = H100.accelerator.room
    assert room is not None and found.fits
    (fewest,) = [each for each in found.changes if set(each.change) == {"recompute_every"}]
    every = fewest.change["recompute_every"]
    assert fewest.fits and fewest.saving > 0
    deeper = [
        trials.outcome(Plan.from_mapping({**plan.to_dict(), "recompute_every": each})) for each in range(every + 1, 5)
    ]
    assert all(each.peak > room or each.step >= fewest.outcome.step for each in deeper)


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ({"recipe": "torch"}, [{"loss_chunks": 8}]),
        ({"recipe": "torch", "loss_chunks": 4}, [{"loss_chunks": None}]),
        ({"recipe": "megatron"}, []),
        ({"recipe": "torch", "workflow": "forward-only"}, []),
    ],
    ids=str,
)
def test_a_loss_is_tried_in_parts_and_a_loss_in_parts_whole(words: dict[str, Any], changes: list[Any]) -> None:
    plan = Plan.from_mapping({"global_batch_size": 8, "seq_len": 8192, **words})
    graph = build_graph(CARD, plan.options)
    assert [change for change in neighbours(plan, graph.sizes) if "loss_chunks" in change] == changes
    trials = Trials(lambda options: build_graph(CARD, options), graph.sizes, H100, processes=1)
    for change in changes:
        found, other = (trials.outcome(each) for each in (plan, Plan.from_mapping(changed_words(plan, change))))
        assert (other.peak < found.peak) == ("loss_chunks" not in words)
