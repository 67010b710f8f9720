"""A search finds what trying every plan finds, its bounds hold, and what it refuses is refused everywhere."""

import dataclasses
import itertools
import math
import random
import time
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest

from stagedb.errors import UsageError
from stagedb.frameworks import FRAMEWORKS
from stagedb.frameworks.profiles import FRAMEWORK_PROFILES, find_profile
from stagedb.graphs.graph_identity import model_sizes
from stagedb.graphs.model_graph import build_graph
from stagedb.lowering.program import IndexedGraph, lower
from stagedb.memory import memory_of, peak_of
from stagedb.models import Card, load_card
from stagedb.plans import Plan
from stagedb.search import Candidate, Fate, Objective, SearchRequest, SearchResult, branches, searching
from stagedb.search.bounds import Bounds
from stagedb.search.conditions import Condition
from stagedb.search.floors import fastest
from stagedb.search.searching import Progress, places_of, search, spaces_of
from stagedb.search.space import GROUPS, Space, Words, groups_of
from stagedb.search.trials import Outcome, Trials
from stagedb.systems import System, load_system, system_names
from stagedb.systems.algorithms import COLLECTIVES
from stagedb.systems.cost_model import CollectiveWork, Costs, Work
from stagedb.systems.tables.operator_times import OperatorTimes
from stagedb.timing.framework_timing import as_used_by
from stagedb.timing.op_durations import most_sent
from stagedb.timing.step_profile import lane_durations
from tests.sampling import draws

H100 = load_system("h100")


def small(model: str, layers: int) -> Card:
    return dataclasses.replace(load_card(model), layers=layers, name=f"{model}-{layers}")


LLAMA = small("llama3.2-1b", 4)
MIXTURE = small("olmoe-1b-7b", 4)


def asked(card: Card, ranks: int, allow: tuple[str, ...], **more: Any) -> SearchRequest:
    words = {"global_batch_size": 16, "seq_len": 2048, "recipe": "megatron", **more.pop("words", {})}
    usual: dict[str, Any] = {"top": 3, **more}
    return SearchRequest(card.name, card.digest, ("h100",), ("",), (ranks,), words, allow, **usual)


def run(request: SearchRequest, card: Card, system: System = H100, **more: Any) -> SearchResult:
    return search(request, card, [system], **{"processes": 1, **more})


def space_of(request: SearchRequest, card: Card) -> Space:
    sizes = model_sizes(card, FRAMEWORKS[str(request.words["recipe"])])
    return Space(sizes, request.words, request.ranks[0], request.allow)


def every_plan(space: Space) -> list[dict[str, Any]]:
    return [plan for group in space.groups() for plan in every_plan_of(space, group)]


def every_plan_of(space: Space, group: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [plan for cell in space.cells(group) for plan in space.plans(cell)]


def layout(words: Mapping[str, Any]) -> str:
    """What plans share that differ only in what recomputes."""
    return repr(sorted((k, v) for k, v in words.items() if k not in ("recompute", "recompute_every")))


def by_trying_all(request: SearchRequest, card: Card) -> tuple[list[tuple[int, int, str]], set[str]]:
    """Step, peak and layout of the best plan of each layout that fits, ascending, and the plans that are refused."""
    space = space_of(request, card)
    trials = Trials(lambda options: build_graph(card, options), space.sizes, H100)
    best: dict[str, tuple[int, int, str]] = {}
    refused = set()
    room = request.room or H100.accelerator.room
    for words in every_plan(space):
        try:
            plan = Plan.from_mapping(words)
            plan.check(space.sizes)
            found = trials.outcome(plan)
        except UsageError:
            refused.add(repr(sorted(words.items())))
            continue
        if room is None or found.peak <= room:
            key = layout(words)
            best[key] = min(best.get(key, (1 << 62, 0, "")), (found.step, found.peak, key))
    return sorted(best.values()), refused


@pytest.mark.parametrize(
    ("card", "allow", "more"),
    [
        (LLAMA, ("recompute", "schedule"), {"words": {"micro_batch_size": 2}}),
        (LLAMA, ("zero", "sp"), {"room": 6 * 10**9}),
        (MIXTURE, ("dispatch",), {}),
    ],
    ids=["recompute and schedules", "little room", "experts"],
)
def test_the_best_plans_are_those_of_trying_every_plan(
    card: Card, allow: tuple[str, ...], more: dict[str, Any]
) -> None:
    request = asked(card, 4, allow, **more)
    found, (best, _) = run(request, card), by_trying_all(request, card)
    assert found.covered and found.left is None
    assert found.size == len(every_plan(space_of(request, card))) == sum(each.plans for each in found.candidates)
    seen: dict[str, tuple[int, int]] = {}
    for each in found.timed:
        seen.setdefault(layout(each.words), (each.step, each.peak))
    assert [step for step, _ in list(seen.values())[:3]] == [step for step, _, _ in best[:3]]
    assert (found.best.step if found.best else None) == (best[0][0] if best else None)


@pytest.mark.parametrize(
    ("allow", "words"),
    [
        ((), {"recompute": "full", "recompute_first": 1}),
        (("schedule",), {"recompute": "full", "recompute_first": 1}),
        (("recompute",), {"recompute_first": 1}),
        ((), {"recompute": "full", "recompute_every": 4}),
        (("recompute",), {"recompute": "full"}),
    ],
    ids=str,
)
def test_groups_are_bounded_with_the_layers_that_words_choose(allow: tuple[str, ...], words: dict[str, Any]) -> None:
    """A group is bounded on one stage, before the number of layers that recompute is known."""
    for ranks in (1, 4):
        request = asked(LLAMA, ranks, allow, words={**words, "micro_batch_size": 4, "global_batch_size": 64})
        (place,) = places_of(request, LLAMA, [H100])
        trials, tried = place.trials, 0
        for group in place.groups():
            bound = place.bounded(group)
            assert bound.step > 0
            for plan in (plan for cell in place.space.cells(group.words) for plan in place.space.plans(cell)):
                assert words.items() <= {**plan, "recompute_every": words.get("recompute_every", 1)}.items()
                try:
                    found = trials.outcome(Plan.from_mapping(plan))
                except UsageError:
                    continue
                tried += 1
                assert bound.step <= found.step and bound.peak <= found.peak, plan
        assert tried
        best, (known, *_) = run(request, LLAMA).best, by_trying_all(request, LLAMA)[0]
        assert best is not None and best.step == known[0]


FIRST: dict[str, tuple[str, int, dict[str, Any]]] = {
    "stages": ("llama3-8b", 8, {"tp": 2, "pp": 2, "dp": 2, "recompute_first": 3, "zero": 1}),
    "chunks": ("llama3-8b", 8, {"tp": 2, "pp": 2, "dp": 2, "recompute_first": 1, "virtual_stages": 2}),
    "few of many": ("llama3-8b", 16, {"dp": 4, "recipe": "torch", "zero": 3, "recompute_first": 2}),
    "half": ("llama3-8b", 16, {"dp": 4, "recipe": "torch", "zero": 3, "recompute_first": 7}),
    "most": ("llama3-8b", 16, {"dp": 4, "recipe": "torch", "zero": 3, "recompute_first": 14}),
    "uneven stages": (
        *("llama3-8b", 14),
        {"pp": 2, "dp": 4, "recipe": "torch", "zero": 2, "recompute_first": 7, "counted_ends": "loss"},
    ),
    "layers of two kinds": ("deepseek-v2-lite", 8, {"tp": 2, "pp": 2, "ep": 2, "dp": 2, "recompute_first": 2}),
    "alternating kinds": ("gemma-2-9b", 8, {"pp": 2, "dp": 4, "recipe": "torch", "zero": 3, "recompute_first": 1}),
}
"""Model, its layers, and words of plans whose first layers recompute."""


@pytest.mark.parametrize("case", FIRST)
def test_no_plan_whose_first_layers_recompute_is_better_than_its_bounds(case: str) -> None:
    model, layers, own = FIRST[case]
    card = small(model, layers)
    usual = {"recipe": "megatron", "global_batch_size": 32, "seq_len": 1024, "recompute": "full"}
    words = {**usual, "sp": own.get("tp", 1) > 1, **own}
    sizes = model_sizes(card, FRAMEWORKS[words["recipe"]])
    trials = Trials(lambda options: build_graph(card, options), sizes, H100)
    assert check_bounds_of(words, trials, Bounds(trials.graph_of, trials.sizes, trials.system))


ALL = groups_of(["all"])
STRATEGIES = ("zero", "hsdp", "sp", "recompute", "schedule", "strategies")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("model", "ranks", "allow"),
    [
        *(("llama3-8b", 64, ALL), ("qwen3-30b-a3b", 32, ALL), ("gemma-2-9b", 16, ALL), ("gpt2", 8, ALL)),
        *(("llama3-8b", 32, STRATEGIES), ("qwen3-30b-a3b", 16, STRATEGIES), ("gemma-2-9b", 8, (*STRATEGIES, "cp"))),
    ],
    ids=lambda value: ("strategies" if "strategies" in value else "all") if isinstance(value, tuple) else str(value),
)
def test_no_plan_is_better_than_its_bounds(model: str, ranks: int, allow: tuple[str, ...], seed: int) -> None:
    card = small(model, 8)
    words = {"global_batch_size": 64, "seq_len": 1024, "recipe": ["torch", "megatron"][seed % 2]}
    space = spaces_of(asked(card, ranks, allow, words=words), card)[0]
    check_bounds(card, space, H100, f"{model} {seed}", only="strategy" if "strategies" in allow else "recipe")


@pytest.mark.parametrize(
    ("framework", "model", "ranks", "dtype"),
    [
        ("nemo", "llama3-8b", 64, "fp8"),
        ("torchtitan", "llama3-8b", 32, "fp8"),
        ("llm-foundry", "gpt2", 16, "same"),
        ("megatron-bridge", "qwen3-30b-a3b", 16, "fp8"),
        ("megatron-deepspeed", "gpt2", 16, "same"),
    ],
)
def test_no_plan_of_a_framework_is_better_than_its_bounds(framework: str, model: str, ranks: int, dtype: str) -> None:
    card, profile = small(model, 8), find_profile(framework)
    words = profile.plan_words({"global_batch_size": 64, "seq_len": 1024, "matmul_dtype": dtype})
    sizes = model_sizes(card, FRAMEWORKS[profile.recipe])
    space = Space(sizes, words, ranks, groups_of(["all"]), profile)
    check_bounds(card, space, as_used_by(H100, profile), framework, profile.hiding.blocking)


@pytest.mark.parametrize("chosen", [{"lora": ("all",)}, {"frozen": ("embedding", "attn")}], ids=["lora", "frozen"])
@pytest.mark.parametrize(("model", "recipe"), [("llama3-8b", "torch"), ("qwen3-30b-a3b", "megatron")])
def test_no_plan_that_trains_some_weights_is_better_than_its_bounds(
    model: str, recipe: str, chosen: Mapping[str, Any]
) -> None:
    card = small(model, 8)
    words = {"global_batch_size": 32, "seq_len": 1024, "recipe": recipe, **chosen}
    space = spaces_of(asked(card, 16, ALL, words=words), card)[0]
    check_bounds(card, space, H100, f"{model} {recipe}")


ELSEWHERE: Mapping[str, dict[str, Any]] = {
    "optimizer on the host": {"recipe": "megatron", "zero": 1, "offload": "optimizer"},
    "inputs on the host": {"recipe": "torch", "recompute": "full", "offload": "activations"},
    "means of rows": {"recipe": "torch", "optimizer": "adafactor"},
    "blocks": {"recipe": "torch", "optimizer": "adamw-8bit"},
    "blocks of parts": {"recipe": "torch", "optimizer": "adamw-8bit-ao"},
    "copies of heads": {"recipe": "torch", "cp": 16, "cp_kind": "ulysses"},
    "owned layers": {"recipe": "megatron", "optimizer": "dist-muon"},
}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_no_plan_with_other_states_is_better_than_its_bounds(case: str) -> None:
    card = small("llama3-8b", 4)
    words = {"global_batch_size": 16, "seq_len": 1024, **ELSEWHERE[case]}
    space = spaces_of(asked(card, 16, ("sp", "schedule"), words=words), card)[0]
    check_bounds(card, space, H100, case)


def test_no_plan_with_a_loss_in_parts_is_better_than_its_bounds() -> None:
    card = small("llama3-8b", 4)
    words = {"global_batch_size": 8, "seq_len": 1024, "recipe": "torch", "loss_chunks": 8}
    space = spaces_of(asked(card, 8, ("zero", "sp", "recompute"), words=words), card)[0]
    check_bounds(card, space, H100, "parts")


def check_bounds(
    card: Card, space: Space, system: System, seed: str, blocking: tuple[str, ...] = (), only: str = "recipe"
) -> None:
    """Fail if a drawn plan is shorter or leaner than its bounds. only: a word that all of them have."""
    trials = Trials(lambda options: build_graph(card, options), space.sizes, system, blocking)
    bounds = Bounds(trials.graph_of, space.sizes, system)
    draw, groups, tried = random.Random(seed), [each for each in space.groups() if only in each], 0
    while tried < draws(6, 2):
        cell = draw.choice(list(space.cells(draw.choice(groups))))
        words = draw.choice(list(space.plans(cell)) or [{}])
        tried += check_bounds_of(words, trials, bounds)


def check_bounds_of(words: Mapping[str, Any], trials: Trials, bounds: Bounds) -> bool:
    """Fail if a plan is shorter or leaner than its bounds. False if it is refused."""
    try:
        plan = Plan.from_mapping(words)
        plan.check(trials.sizes)
        program = trials.copied(plan)
        exact = Outcome(trials.step(program), peak_of(memory_of(program)))
    except UsageError:
        return False
    assert 0 <= bounds.sent(plan, bounds.chunks(plan)) <= most_sent(program.workload), words
    bound = bounds.bound(plan, bounds.chunks(plan))
    assert bound.step <= exact.step, words
    assert bound.peak <= exact.peak, words
    assert sum(bound.terms.values()) == bound.step
    closer = bounds.rehearsed(plan, bound)
    assert bound.step <= closer.step <= exact.step, words
    assert sum(closer.terms.values()) == closer.step
    return True


def test_the_time_of_long_steps_is_explained_for_the_best_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    request = asked(MIXTURE, 8, ("zero", "sp"), words={"recipe": "torch"})
    usual = run(request, MIXTURE)
    monkeypatch.setattr(branches, "LONG", 0)
    found = run(request, MIXTURE)
    assert found.winners == usual.winners and len(found.timed) > len(found.winners)
    assert [(each.words, each.step, each.peak) for each in found.timed] == [
        (each.words, each.step, each.peak) for each in usual.timed
    ]
    assert all(sum(each.terms.values()) == each.step for each in found.timed)
    # One that ends early explains its best plan.
    late = run(request, MIXTURE, seconds=1e-9, known=found.timed)
    assert late.best == usual.best


ONCE_EXCEEDED: dict[str, tuple[str, int, str, dict[str, Any]]] = {
    "a bucket for each chunk of layers of two kinds": (
        *("deepseek-v2-lite", 8, "h100"),
        {"tp": 8, "pp": 2, "ep": 2, "expert_tp": False, "schedule": "interleaved", "virtual_stages": 2},
    ),
    "a bucket for each stage of layers of two kinds": (
        *("deepseek-v2-lite", 6, "a100-80gb"),
        {"pp": 2, "cp": 16, "cp_kind": "ulysses", "ep": 8, "micro_batch_size": 16},
    ),
    "ends of the pipeline without layers": (
        *("olmoe-1b-7b", 8, "h100"),
        {"pp": 8, "cp": 2, "cp_kind": "allgather-kv", "ep": 2, "counted_ends": "both"},
    ),
    "optimizer states of experts, which other ranks share than other weights": (
        *("deepseek-v2-lite", 8, "h100"),
        {"tp": 16, "dp": 2, "ep": 8, "expert_tp": False, "zero": 1},
    ),
    "more ranks that share experts than experts": (
        *("mixtral-8x7b", 4, "h100"),
        {"recipe": "torch", "dp": 16, "ep": 8, "zero": 1},
    ),
    "experts of which each rank has its own, which no optimizer gathers": (
        *("qwen3-30b-a3b", 7, "b200"),
        {"recipe": "torch", "dp": 16, "ep": 16, "zero": 1},
    ),
    "buffers of which there are copies": (
        *("olmoe-1b-7b", 4, "h100"),
        {"dp": 8, "hsdp": 2, "zero": 1},
    ),
    "parameters that are gathered along two axes at a time": (
        *("gpt-oss-20b", 4, "gb200-nvl72"),
        {"recipe": "torch", "dp": 4, "tp": 2, "expert_tp": False, "ep": 2, "zero": 1},
    ),
}
"""Model, its layers, system, and words of plans that were better than their bounds, by what the bounds had wrong."""


@pytest.mark.parametrize("case", ONCE_EXCEEDED)
def test_no_plan_of_a_kind_that_once_was_is_better_than_its_bounds(case: str) -> None:
    model, layers, system, words = ONCE_EXCEEDED[case]
    card = small(model, layers)
    usual = {"recipe": "megatron", "global_batch_size": 32, "seq_len": 1024}
    words = {**usual, "sp": words.get("tp", 1) > 1, **words}
    trials = Trials(
        lambda options: build_graph(card, options),
        model_sizes(card, FRAMEWORKS[words["recipe"]]),
        load_system(system),
    )
    assert check_bounds_of(words, trials, Bounds(trials.graph_of, trials.sizes, trials.system))


def test_plans_share_the_figures_that_their_other_words_do_not_change() -> None:
    """Stages of ZeRO save the same, and what recomputes holds the same: neither is lowered again."""
    card = load_card("gpt2")
    bounds = Bounds(partial(build_graph, card), model_sizes(card, FRAMEWORKS["megatron"]), load_system("h100"))
    again: list[Words] = [{"recompute": "none"}, {"recompute": "full"}, {"recompute": "pointwise"}]
    plans = [
        Plan.from_mapping({"dp": 4, "seq_len": 512, "zero": zero, **words}) for zero in range(4) for words in again
    ]
    for plan in plans:
        alone = Bounds(bounds.graph_of, bounds.sizes, bounds.system)
        assert bounds.saved(plan) == alone.saved(plan)
        assert bounds.held(plan) == alone.held(plan)
        assert bounds.work(plan, True) == alone.work(plan, True)
    assert len({id(each) for each in bounds._micro_batches.values()}) == 3
    assert len({id(each) for each in bounds._states.values()}) == 4


@pytest.mark.parametrize(
    ("card", "ranks", "allow", "own"),
    [
        (LLAMA, 8, groups_of(["all"]), {}),
        (MIXTURE, 8, ("zero", "overlap", "order"), {"recipe": "torch"}),
        (MIXTURE, 4, (), {"scatter_gather": True}),
        (LLAMA, 16, ("order", "overlap"), {"pp": 4}),
    ],
)
def test_plans_of_a_group_are_counted_as_they_are_listed(
    card: Card, ranks: int, allow: tuple[str, ...], own: dict[str, Any]
) -> None:
    space = space_of(asked(card, ranks, allow, words=own), card)
    groups = list(space.groups())
    for group in groups[:: max(1, len(groups) // 40)]:
        assert space.count_group(group) == sum(map(space.count, space.cells(group)))


@pytest.mark.parametrize(
    ("card", "allow", "reasons"),
    [(LLAMA, ("schedule", "splits"), 4), (MIXTURE, ("zero", "hsdp"), 4)],
    ids=["layers of stages", "copies of experts"],
)
def test_what_is_refused_has_the_reason_of_the_plan(card: Card, allow: tuple[str, ...], reasons: int) -> None:
    request = asked(card, 8, allow, words={"recompute": "none", "micro_batch_size": 1})
    space = space_of(request, card)
    refused = [each for each in run(request, card).candidates if each.fate is Fate.REFUSED]
    assert len({each.why for each in refused}) >= reasons
    for each in refused:
        with pytest.raises(UsageError) as error:
            plan = Plan.from_mapping(each.words)
            plan.check(space.sizes)
            Trials(lambda options: build_graph(card, options), space.sizes, H100).outcome(plan)
        assert str(error.value) == each.why
        assert each.code == "refused"


def _rows(found: SearchResult) -> list[Candidate]:
    """The best plan of each of the best three layouts."""
    best: dict[str, Candidate] = {}
    for each in found.timed:
        best.setdefault(layout(each.words), each)
    return list(best.values())[:3]


def test_processes_and_resumed_searches_find_the_same() -> None:
    request = asked(LLAMA, 8, ("schedule", "recompute"))
    alone = run(request, LLAMA)
    assert _rows(run(request, LLAMA, processes=2)) == _rows(alone)
    stopped = run(request, LLAMA, seconds=0.2)
    assert not stopped.covered and stopped.left is not None
    assert sum(each.plans for each in stopped.candidates) == stopped.size == alone.size
    assert _rows(run(request, LLAMA, known=stopped.candidates)) == _rows(alone)


def test_the_next_search_of_a_model_has_the_bounds_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    request = asked(LLAMA, 2, ("zero",), words={"micro_batch_size": 4, "seq_len": 512})
    first, made = run(request, LLAMA), list[Plan]()
    monkeypatch.setattr("stagedb.search.bounds.micro_batch_figures", lambda graph, plan, system: made.append(plan))
    assert run(request, LLAMA).candidates == first.candidates and not made
    slower = dataclasses.replace(H100, accelerator=dataclasses.replace(H100.accelerator, launch=Fraction(10**6)))
    with pytest.raises(AttributeError):
        run(request, LLAMA, slower)
    assert made, "another system has its own"


@pytest.mark.parametrize("seconds", [0.01, 0.4])
def test_a_search_that_goes_on_and_ends_early_has_the_plans_that_are_known(seconds: float) -> None:
    request = asked(LLAMA, 8, ("schedule", "recompute"))
    alone = run(request, LLAMA)
    again = run(request, LLAMA, known=alone.candidates, seconds=seconds)
    assert {each.step for each in alone.timed} <= {each.step for each in again.timed}
    assert again.best is not None and alone.best is not None and again.best.words == alone.best.words
    assert sum(each.plans for each in again.candidates) == again.size
    assert all(each.plans > 0 for each in again.candidates)


def test_messages_between_stages_go_whole_and_in_parts() -> None:
    """Where ranks of tp send the same tensor, each plan has a twin whose messages are scattered."""
    plans = every_plan(space_of(asked(LLAMA, 8, ("overlap",)), LLAMA))
    values = {True: Counter[Any](), False: Counter[Any]()}
    for words in plans:
        values[words["pp"] > 1 and words["tp"] > 1][words.get("scatter_gather")] += 1
    assert values[True][None] == values[True][True] == values[True].total() // 2 > 0
    assert set(values[False]) == {None}


def test_plans_behind_one_that_is_known_are_counted_once() -> None:
    """Sets of plans in which more and more layers recompute, of which the first was tried before."""
    card = small("llama3.2-1b", 8)
    request = asked(card, 4, ("recompute",), words={"seq_len": 65_536})
    alone = run(request, card)
    again = run(request, card, known=alone.candidates)
    assert all(each.plans > 0 for each in again.candidates)
    assert sum(each.plans for each in again.candidates) == again.size == alone.size
    assert again.best is not None and alone.best is not None and again.best.words == alone.best.words


def test_why_a_plan_loses_is_the_term_in_which_it_does() -> None:
    found = run(asked(LLAMA, 8, ("schedule",)), LLAMA)
    best = found.best
    assert best is not None and best.code == "best"
    for each in found.timed:
        assert sum(each.terms.values()) == each.step
    losers = [each for each in found.candidates if each.fate in (Fate.TIMED, Fate.SLOWER) and each is not best]
    assert losers and all(each.code in {*each.terms, *best.terms, "compute"} for each in losers)
    assert {each.code for each in found.candidates if each.fate is Fate.MEMORY} <= {"memory"}


def test_other_objectives() -> None:
    request = asked(LLAMA, 4, ("zero", "recompute"), by=Objective.MEMORY, words={"micro_batch_size": 2})
    found, space = run(request, LLAMA), space_of(request, LLAMA)
    trials = Trials(lambda options: build_graph(LLAMA, options), space.sizes, H100)
    peaks = []
    for words in every_plan(space):
        try:
            plan = Plan.from_mapping(words)
            plan.check(space.sizes)
            peaks.append(trials.outcome(plan).peak)
        except UsageError:
            continue
    assert found.best is not None and found.best.peak == min(peaks)
    several = dataclasses.replace(
        asked(LLAMA, 2, ()), ranks=(2, 4), by=Objective.TOKENS_PER_DOLLAR, prices={"h100": 2.5}
    )
    cheap = run(several, LLAMA).best
    steps = {ranks: run(asked(LLAMA, ranks, ()), LLAMA).best for ranks in (2, 4)}
    costs = {ranks: each.step * ranks for ranks, each in steps.items() if each is not None}
    assert cheap is not None and cheap.step * cheap.ranks == min(costs.values())


def test_each_number_of_ranks_has_its_best_plans() -> None:
    """Those of the search on this number of ranks alone, also where fewer ranks are slower than all plans on more."""
    several = run(dataclasses.replace(asked(LLAMA, 2, ("zero",)), ranks=(2, 4, 8)), LLAMA)
    assert several.covered and sum(each.plans for each in several.candidates) == several.size
    alone = {ranks: run(asked(LLAMA, ranks, ("zero",)), LLAMA) for ranks in (2, 4, 8)}
    assert [(each.ranks, each.words, each.step, each.code) for each in several.winners] == [
        (each.ranks, each.words, each.step, each.code) for found in alone.values() for each in found.winners
    ]
    assert [each.code for each in several.winners].count("best") == 3
    assert several.best == several.best_on(8)
    assert max(each.step for each in alone[8].winners) < min(each.step for each in alone[2].winners)


def test_a_search_that_ends_early_has_plans_of_each_number_of_ranks() -> None:
    """The numbers take turns, so that the one with the shortest steps does not take all of the time."""
    ended: list[int] = []
    request = dataclasses.replace(asked(LLAMA, 2, ("zero",), top=20), ranks=(2, 8))

    def settled(each: Candidate) -> None:
        if each.fate is Fate.TIMED:
            ended.append(each.ranks)

    run(request, LLAMA, settled=settled)
    assert ended.index(2) < ended.index(8) + ended.count(8) - 1, "2 ranks do not wait for all plans on 8"


def test_a_search_over_one_number_of_ranks_keeps_its_id() -> None:
    one, several = asked(LLAMA, 4, ()), dataclasses.replace(asked(LLAMA, 4, ()), ranks=(4, 8))
    assert one.ids[0] == one.id == one.ids[-1]
    assert several.ids[0] == several.id != several.ids[-1]
    chosen = dataclasses.replace(asked(LLAMA, 4, ("recompute",)), framework="megatron-core")
    assert chosen.ids[0] == chosen.id not in chosen.ids[1:]


def test_weights_with_fewer_elements_than_ranks_are_searched() -> None:
    """The scales of hyper-connections have three numbers, and ZeRO 1 has buffers in eight parts."""
    kinds: Any = {"layer": {"residual": "hyper_connections"}}
    streams = dataclasses.replace(LLAMA, hyper_connections=4, layer_kinds=kinds, pattern=("layer",))
    found = run(asked(streams, 8, (), words={"zero": 1, "tp": 1, "pp": 1}), streams)
    assert found.covered and found.best is not None
    assert not any("shard" in each.why for each in found.candidates)


def test_the_progress_of_a_search_ends_with_all_its_plans() -> None:
    """Those that the last limit rules out without opening them, too."""
    seen: list[Progress] = []
    found = run(asked(LLAMA, 8, ("zero",)), LLAMA, progress=seen.append)
    assert found.covered and any(each.fate is Fate.SLOWER for each in found.candidates)
    assert (seen[0].done, seen[-1].done, seen[-1].of) == (0, found.size, found.size)
    assert [each.done for each in seen] == sorted(each.done for each in seen)


def test_a_condition_leaves_plans_out() -> None:
    every, some = run(asked(LLAMA, 8, ()), LLAMA), run(asked(LLAMA, 8, (), where="tp == 2 and pp < 3"), LLAMA)
    wanted = [each for each in every.timed if each.words["tp"] == 2 and each.words["pp"] < 3]
    assert some.best is not None and (some.best.words["tp"], some.best.words["pp"]) == (2, some.best.words["pp"])
    assert all(each.words["tp"] == 2 for each in some.timed)
    if wanted:
        assert some.best.step <= wanted[0].step
    assert any(each.code == "filtered" for each in some.candidates)


@pytest.mark.parametrize(
    ("text", "values", "holds"),
    [
        ("tp <= 8 and peak < 76e9", {"tp": 4, "peak": 75 * 10**9}, True),
        ("tp <= 8 and peak < 76e9", {"tp": 4, "peak": 77 * 10**9}, False),
        ("not sp or schedule == '1f1b'", {"sp": True}, True),
        ("1 < pp <= 4", {"pp": 1}, False),
        ("step > -1", {"step": 0}, True),
    ],
)
def test_conditions(text: str, values: dict[str, Any], holds: bool) -> None:
    assert Condition.parse(text).holds(values) is holds


@pytest.mark.parametrize(
    "text",
    [
        *("__import__('os').system('true')", "tp.__class__ == 1", "tp + 1 < 3", "tp in (1, 2)", "lambda: 1", "tps < 3"),
        *("", "tp <", "[x for x in tp]", "f'{tp}'", "tp if pp else 1", "(" * 900, "tp < 3; pp", "tp := 3", "1j < tp"),
    ],
)
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--where|condition"):
        Condition.parse(text)


def test_a_condition_on_texts_and_numbers_is_refused() -> None:
    with pytest.raises(UsageError, match="compares a number with a text"):
        Condition.parse("schedule < 3").holds({"schedule": "1f1b"})


def test_groups_are_named() -> None:
    assert groups_of(["all"]) == tuple(name for name in GROUPS if name not in ("strategies", "splits"))
    assert groups_of(["none"]) == ()
    assert groups_of(["schedule", "zero"]) == ("zero", "schedule")
    with pytest.raises(UsageError, match="unknown group of words 'zerro'"):
        groups_of(["zerro"])
    with pytest.raises(UsageError, match="global-batch-size"):
        space_of(dataclasses.replace(asked(LLAMA, 8, ()), words={"recipe": "torch"}), LLAMA)


def test_a_condition_decides_as_soon_as_it_can() -> None:
    condition = Condition.parse('tp <= 4 and (peak < 5 or not zero == 1) or schedule == "1f1b"')
    every = [
        {"tp": tp, "peak": peak, "zero": zero, "schedule": schedule}
        for tp in (2, 8)
        for peak in (1, 9)
        for zero in (0, 1)
        for schedule in ("1f1b", "gpipe")
    ]
    for known in ((), ("tp",), ("zero", "schedule"), ("tp", "schedule"), ("peak", "zero", "schedule"), tuple(every[0])):
        for each in every:
            some = {name: each[name] for name in known}
            alike = [one for one in every if some.items() <= one.items()]
            assert condition.may_hold(some) == any(map(condition.holds, alike)), some


@pytest.mark.parametrize(
    ("card", "system", "framework", "words"),
    [
        (LLAMA, "h100", "", {}),
        (LLAMA, "a100-80gb", "torchtitan", {"recipe": "torch"}),
        (LLAMA, "mi300x", "nemo", {"matmul_dtype": "fp8"}),
        (MIXTURE, "h100", "megatron-core", {"dispatch": "ranks"}),
        (MIXTURE, "gb200-nvl72", "", {}),
    ],
)
def test_the_bound_of_all_micro_batches_is_below_that_of_each(
    card: Card, system: str, framework: str, words: dict[str, Any]
) -> None:
    request = asked(card, 16, (), words={"global_batch_size": 96, **words}, framework=framework)
    timed = load_system(system)
    if framework:
        profile = find_profile(framework)
        timed = as_used_by(timed, profile)
        request = dataclasses.replace(request, words=profile.plan_words(request.words))
    (place,) = places_of(request, card, [timed])
    shares = []
    for group in random.Random(7).sample(list(place.groups()), 12):
        rough, bound = place.bounded_by_degrees(group), place.bounded(group)
        if bound.step:  # some degrees suit no plan of one stage
            shares.append(rough.step / bound.step)
    assert 0.5 < max(shares) <= 1


@pytest.mark.parametrize("name", system_names())
def test_nothing_takes_less_than_at_the_best_rates_of_a_system(name: str) -> None:
    system = load_system(name)
    at_best = fastest(system)
    assert at_best is not None
    own, least, draw = Costs(system, 64), Costs(at_best, 64), random.Random(11)
    works = []
    for dtype, _ in [(dtype, _) for dtype in system.accelerator.peak for _ in range(120)]:
        m, n, k = (round(math.exp(draw.uniform(3, 13))) for _ in range(3))
        experts = draw.choice((1, 8))
        dims = (experts, m, n, k) if experts > 1 else (m, n, k)
        works.append(Work("matmul", dtype, 2 * experts * m * n * k, 0, dims, grouped=experts > 1))
        batch, heads, head = draw.choice((1, 4, 32)), draw.choice((8, 64)), draw.choice((64, 128))
        queries = round(math.exp(draw.uniform(5, 10)))
        pairs = 4 * batch * heads * queries * queries * head
        works.append(
            Work("attention", dtype, pairs, 0, (batch, heads, heads // draw.choice((1, 8)), queries, queries, head))
        )
        works.append(Work("elementwise", dtype, 0, round(math.exp(draw.uniform(8, 24)))))
    for work in works:
        half = dataclasses.replace(work, flops=work.flops // 2) if work.kind == "attention" else work
        assert least.work(half).ns <= own.work(work).ns + 1, work
    for kind, ranks in itertools.product(COLLECTIVES, (range(2), range(8), range(0, 64, 8), range(64))):
        for size in (round(math.exp(draw.uniform(8, 24))) for _ in range(12)):
            collective = CollectiveWork(kind, size, tuple(ranks))
            assert least.collective(collective).ns <= own.collective(collective).ns + 1, collective


def test_no_size_exceeds_the_fastest_rate_of_a_table() -> None:
    for system in ("h100", "a100-80gb", "b200"):
        table = OperatorTimes(load_system(system)).table("matmul", "bf16")
        assert table is not None
        drawn = np.random.default_rng(5)
        rows = {name: np.exp(drawn.uniform(2, 13, 20_000)) for name in ("m", "n", "k")}
        rates = 2 * rows["m"] * rows["n"] * rows["k"] / table.ns(rows)
        assert 0.7 * table.fastest < rates.max() <= table.fastest


def test_what_dp_shards_is_known_to_the_first_bound_of_the_memory() -> None:
    request = asked(LLAMA, 8, (), words={"zero": 1}, room=4 * 10**9)
    place = places_of(request, LLAMA, [H100])[0]
    fits = 0
    for group in place.groups():
        bound = place.bounded(group)
        for cell in place.space.cells(group.words):
            for words in place.space.plans(cell):
                try:
                    found = place.trials.outcome(Plan.from_mapping(words))
                except UsageError:
                    continue
                assert bound.peak <= found.peak, words
                fits += found.peak <= 4 * 10**9
    assert fits


def test_a_search_ends_in_time_before_all_have_bounds() -> None:
    request = asked(MIXTURE, 32, groups_of(["all"]), words={"global_batch_size": 256})
    found = run(request, MIXTURE, seconds=1, processes=1)
    assert any(each.fate is Fate.UNTRIED and not each.step for each in found.candidates)
    assert not found.covered and sum(each.plans for each in found.candidates) == found.size
    assert found.left is not None


def test_a_plan_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = branches.SearchPlace.tried

    def stuck(place: branches.SearchPlace, branch: branches.PlanSet, longest: int | None) -> branches.Opened:
        if longest is not None:  # another one is known by then
            time.sleep(3600)
        return usual(place, branch, longest)

    monkeypatch.setattr(branches.SearchPlace, "tried", stuck)
    found = run(dataclasses.replace(asked(LLAMA, 8, ("recompute",)), top=1), LLAMA, seconds=2, processes=2)
    assert found.best is not None and not found.covered and found.left is not None
    assert sum(each.plans for each in found.candidates) == found.size


def test_plans_that_are_too_large_to_be_timed_are_not_ruled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    request = asked(LLAMA, 8, ("recompute",), words={"micro_batch_size": 2})
    usual = run(request, LLAMA, processes=1)
    monkeypatch.setattr("stagedb.timing.node_graph.MOST_NODES", 150)
    found = run(request, LLAMA, processes=1)
    assert usual.covered and usual.best is not None and found.best is not None
    assert found.best.step > usual.best.step and not found.covered
    assert found.left is not None and found.left <= usual.best.step
    assert any(each.fate is Fate.UNTRIED and "does not fit into memory" in each.why for each in found.candidates)


@pytest.mark.parametrize("cp", [2, 4])
def test_bounds_of_the_first_rank_of_a_ring_are_those_of_its_whole_program(cp: int) -> None:
    plan = Plan.from_mapping(
        {"tp": 1, "cp": cp, "dp": 1, "cp_kind": "ring-p2p", "global_batch_size": 1, "seq_len": 64 * cp}
    )
    indexed = IndexedGraph.of(build_graph(LLAMA, plan.options))
    whole, first = lower(indexed, plan), lower(indexed, plan, first_of_cp=True)
    assert len(whole.workload.classes) == cp and len(first.workload.classes) == 1
    alike = dataclasses.replace(first.workload.classes[0], digest=whole.workload.classes[0].digest)
    assert repr(whole.workload.classes[0]) == repr(alike)
    ns = lane_durations(whole.workload, H100).ns[0], lane_durations(first.workload, H100, count=1).ns[0]
    assert (ns[0] == ns[1]).all()


def test_a_kind_of_context_parallelism_leaves_plans_without_it() -> None:
    found = run(asked(LLAMA, 4, ("cp",), words={"cp_kind": "allgather-kv"}), LLAMA)
    assert {each.words["cp"] for each in found.candidates if each.fate is not Fate.REFUSED} >= {1, 2}
    assert not any("ranks that share a sequence" in each.why for each in found.candidates)


@pytest.mark.parametrize("framework", ["megatron-core", "torchtitan"])
def test_layers_recompute_as_the_framework_can_choose_them(framework: str) -> None:
    """Megatron has no choice but the first layers of each chunk (`recompute_method` block), for whole layers alone."""
    profile = find_profile(framework)
    words = profile.plan_words({"global_batch_size": 16, "seq_len": 2048})
    space = Space(model_sizes(LLAMA, FRAMEWORKS[profile.recipe]), words, 4, ("recompute", "schedule"), profile)
    plans = every_plan(space)
    found: dict[tuple[str, int, int], set[str]] = {}
    for plan in plans:
        chosen = {f"{word[10:]} {plan[word]}" for word in ("recompute_every", "recompute_first") if word in plan}
        key = plan["recompute"], plan["pp"], plan.get("virtual_stages", 1)
        found.setdefault(key, set()).update(chosen or {"all"})
    whole = {each: found["full", *each] for each in ((1, 1), (2, 1), (4, 1))}
    if framework == "torchtitan":
        assert whole == {(1, 1): {"all", "every 2", "every 3", "every 4"}, (2, 1): {"all", "every 2"}, (4, 1): {"all"}}
        return
    assert whole == {(1, 1): {"all", "first 1", "first 2", "first 3"}, (2, 1): {"all", "first 1"}, (4, 1): {"all"}}
    assert found["full", 2, 2] == {"all"}
    assert not any("recompute_first" in plan for plan in plans if plan["recompute"] != "full")
    assert profile.settings is not None
    for plan in (plan for plan in plans if "recompute_first" in plan):
        assert "recompute_first" not in profile.settings.settings(plan, plan).without


@pytest.mark.parametrize("framework", FRAMEWORK_PROFILES)
@pytest.mark.parametrize("card", [LLAMA, MIXTURE], ids=["dense", "experts"])
def test_groups_with_plans_have_bounds(card: Card, framework: str) -> None:
    """Without one a group is opened before those that may win: torchtitan's clipping once left all but tp 1 so."""
    request = dataclasses.replace(
        asked(card, 8, ("zero", "recompute"), words={"recipe": find_profile(framework).recipe}), framework=framework
    )
    (place,) = places_of(request, card, [H100])
    for group in place.groups():
        if not place.bounded(group).step:
            for words in every_plan_of(place.space, group.words):
                with pytest.raises(UsageError):
                    Plan.from_mapping(words).check(place.space.sizes)


@pytest.mark.parametrize("framework", FRAMEWORK_PROFILES)
@pytest.mark.parametrize("card", [LLAMA, MIXTURE], ids=["dense", "experts"])
def test_plans_of_a_search_are_those_that_the_framework_can_run(card: Card, framework: str) -> None:
    profile = find_profile(framework)
    words = profile.plan_words({"global_batch_size": 8, "seq_len": 2048, "micro_batch_size": 1})
    space = Space(model_sizes(card, FRAMEWORKS[profile.recipe]), words, 4, groups_of(["all"]), profile)
    plans = every_plan(space)
    assert plans and len(plans) == space.size()
    settings = profile.settings
    for plan in plans if settings is not None else ():
        own = profile.plan_words({word: value for word, value in plan.items() if word in space.words})
        chosen = {word: value for word, value in plan.items() if word not in own and value != 1}
        assert settings is None or not {*settings.settings(plan, chosen).without} - {"virtual_stages"}, plan
    found = {word: {plan.get(word) for plan in plans} for word in ("tp", "pp", "zero", "schedule", "sp")}
    if framework in ("llm-foundry", "fsdp"):
        assert found["tp"] == found["pp"] == {1} and 1 not in found["zero"]
        assert any("recompute_every" in plan for plan in plans) == (framework == "fsdp")
    if framework in ("megatron-core", "nemo", "megatron-bridge", "megatron-2021"):
        assert found["schedule"] == {None, "1f1b", "interleaved"} and (3 in found["zero"]) == (
            framework[9:] in ("core", "bridge")
        )
    if framework == "megatron-2021":
        assert True not in found["sp"] and 4 in found["tp"]


@pytest.mark.parametrize(("framework", "scores"), [("megatron-core", True), ("nemo", True), ("torchtitan", False)])
def test_scores_alone_recompute_where_attention_writes_them(framework: str, scores: bool) -> None:
    """Megatron's `core_attn`: one kernel has no scores to recompute, and torchtitan has no such setting."""
    profile = find_profile(framework)
    for attention in ("math", "fused"):
        words = profile.plan_words({"global_batch_size": 8, "seq_len": 2048, "attention": attention})
        space = Space(model_sizes(LLAMA, FRAMEWORKS[profile.recipe]), words, 4, ("recompute",), profile)
        kinds = {plan["recompute"] for plan in every_plan(space)}
        assert {"none", "full"} <= kinds and ("core" in kinds) == (scores and attention == "math")


def test_a_word_that_all_plans_have_need_not_be_one_of_the_framework() -> None:
    profile = find_profile("nemo")
    words = profile.plan_words({"global_batch_size": 8, "seq_len": 2048, "zero": 3})
    space = Space(model_sizes(LLAMA, FRAMEWORKS["megatron"]), words, 8, ("zero",), profile)
    assert {plan["zero"] for plan in every_plan(space)} == {3}


def test_a_search_finds_the_first_layers_that_fit() -> None:
    """With room for less than all activations, the fewest layers that are enough are those of trying every number."""
    profile = find_profile("megatron-core")
    words = profile.plan_words({"global_batch_size": 16, "seq_len": 4096, "micro_batch_size": 4, "tp": 1, "pp": 1})
    space = Space(model_sizes(LLAMA, FRAMEWORKS["megatron"]), words, 2, ("recompute",), profile)
    trials = Trials(lambda options: build_graph(LLAMA, options), space.sizes, as_used_by(H100, profile))
    outcomes = {
        plan.get("recompute_first", 4): trials.outcome(Plan.from_mapping(plan))
        for plan in every_plan(space)
        if plan["recompute"] == "full"
    }
    assert outcomes.keys() == {1, 2, 3, 4}
    peaks, steps = ([getattr(outcomes[first], name) for first in (1, 2, 3, 4)] for name in ("peak", "step"))
    assert peaks == sorted(set(peaks), reverse=True) and steps == sorted(set(steps))
    for first in (1, 2, 3):
        request = asked(LLAMA, 2, ("recompute",), words=words, room=outcomes[first].peak, framework="megatron-core")
        found = run(request, LLAMA, as_used_by(H100, profile))
        full = [each for each in found.timed if each.words.get("recompute") == "full"]
        assert full[0].words["recompute_first"] == first and full[0].step == outcomes[first].step
        assert found.covered and sum(each.plans for each in found.candidates) == found.size == len(every_plan(space))


@pytest.mark.parametrize(
    ("card", "before"),
    [
        (LLAMA, {"seq_len": 8192}),
        (LLAMA, {"dtype": "fp16", "param_dtype": "fp32"}),
        (MIXTURE, {"seq_len": 512, "global_batch_size": 32}),
        (MIXTURE, {"capacity_factor": 1.5}),
        (MIXTURE, {"expert_load": "zipf:1"}),
    ],
)
def test_a_search_after_another_one_has_its_own_bounds(card: Card, before: dict[str, Any]) -> None:
    def bounds(words: dict[str, Any]) -> list[tuple[int, int]]:
        (place,) = places_of(asked(card, 16, (), words=words), card, [H100])
        groups = random.Random(7).sample(list(place.groups()), 4)
        return [(place.bounded_by_degrees(group).step, place.bounded(group).step) for group in groups]

    searching._bounds.cache_clear()
    alone = bounds({})
    searching._bounds.cache_clear()
    bounds(before)
    assert bounds({}) == alone
