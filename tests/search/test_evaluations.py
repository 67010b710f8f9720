"""Plans drawn by a seed: a search has `profile`'s step and `memory`'s peak, and refuses what `instantiate` refuses."""

import dataclasses
import random
from functools import cache, partial

import pytest

from stagedb.errors import UsageError
from stagedb.frameworks import FRAMEWORKS
from stagedb.graphs.graph_identity import model_sizes
from stagedb.graphs.model_graph import build_graph
from stagedb.lowering.program import IndexedGraph, lower
from stagedb.memory import memory_of, peak_of
from stagedb.models import load_card
from stagedb.plans import Plan
from stagedb.search import Fate, SearchRequest
from stagedb.search.bounds import Bounds
from stagedb.search.branches import PlanSet, SearchPlace, SetKind
from stagedb.search.space import Space, Words, groups_of
from stagedb.systems import load_system
from stagedb.timing import profile_job

MODELS = {
    "gpt2": 8,
    "llama3-8b": 64,
    "llama3.2-1b": 16,
    "gemma-2-9b": 16,
    "qwen3-30b-a3b": 32,
    "olmoe-1b-7b": 16,
    "gpt-oss-20b": 16,
    "deepseek-v2-lite": 16,
}
"""Models, cut to 8 layers, and the ranks on which their plans are drawn."""

H100 = load_system("h100")


@cache
def place_of(model: str, recipe: str) -> SearchPlace:
    """All plans of a model with a recipe, without a limit of memory."""
    card = dataclasses.replace(load_card(model), layers=8, name=f"{model}-8")
    words = {"global_batch_size": 64, "seq_len": 1024, "recipe": recipe}
    space = Space(model_sizes(card, FRAMEWORKS[recipe]), words, MODELS[model], groups_of(["all"]))
    request = SearchRequest(
        card.name, card.digest, ("h100",), ("",), (MODELS[model],), words, groups_of(["all"]), room=1 << 60
    )
    return SearchPlace.of(0, space, Bounds(partial(build_graph, card), space.sizes, H100), request, None, card.check_tp)


def drawn(place: SearchPlace, draw: random.Random) -> Words:
    """The words of a plan of the grammar, whether it is one of the model or not."""
    groups = list(place.space.groups())
    while True:
        cell = draw.choice(list(place.space.cells(draw.choice(groups))))
        if plans := list(place.space.plans(cell)):
            return draw.choice(plans)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("model", MODELS)
def test_a_drawn_plan_has_the_step_of_its_profile_and_the_peak_of_its_memory(model: str, seed: int) -> None:
    place, draw = place_of(model, ["megatron", "torch"][seed % 2]), random.Random(f"{model} {seed}")
    for words in (drawn(place, draw) for _ in range(100)):
        (found,) = place.tried(PlanSet(0, SetKind.PLAN, words, 1), None).settled
        if found.fate is Fate.REFUSED:
            with pytest.raises(UsageError) as error:
                plan = Plan.from_mapping(words)
                plan.check(place.space.sizes)
                lower(IndexedGraph.of(place.bounds.graph(plan.options)), plan)
            assert str(error.value) == found.why, words
            continue
        plan = Plan.from_mapping(words)
        program = lower(IndexedGraph.of(place.bounds.graph(plan.options)), plan)
        assert found.step == profile_job(program.workload, place.trials.system).step, words
        assert found.peak == peak_of(memory_of(program)), words
        return
    raise AssertionError("no plan was drawn")
