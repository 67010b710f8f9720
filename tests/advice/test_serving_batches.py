"""A step of serving with other numbers of requests: each is what its own plan is, up to the first that does not fit."""

from fractions import Fraction
from functools import partial
from typing import Any

import pytest

from stagedb.api.model_names import card
from stagedb.graphs.graph_identity import model_sizes
from stagedb.graphs.model_graph import build_graph
from stagedb.plans import GraphOptions, Plan
from stagedb.search.trials import Trials, batch_points
from stagedb.systems import load_system

MODEL = card("llama3-8b")
TRIALS = Trials(
    partial(build_graph, MODEL), model_sizes(MODEL, GraphOptions().framework), load_system("h100"), processes=1
)


def planned(**words: Any) -> Plan:
    return Plan.from_mapping({"workflow": "decode", "cache_len": 8_000, **words})


@pytest.mark.parametrize(
    "words",
    [
        {"micro_batch_size": 24},
        {"micro_batch_size": 8, "global_batch_size": 16, "pp": 2},
        {"workflow": "speculative", "seq_len": 3, "acceptance": 0.5, "micro_batch_size": 4},
        {"workflow": "prefill", "seq_len": 512, "cache_len": 0},
    ],
)
def test_points_are_steps_of_their_own_plans(words: dict[str, Any]) -> None:
    plan = planned(**words)
    found = batch_points(TRIALS, plan)
    (own,) = (each for each in found if each.own)
    assert own.requests == plan.batch
    assert [each.fits for each in found] == [True] * (len(found) - 1) + [False]
    assert [each.requests for each in found] == sorted(each.requests for each in found)
    gained = Fraction(7, 4) if plan.drafted else 1
    for each in (found[0], own, found[-1]):
        count = each.requests // plan.microbatches
        outcome = TRIALS.outcome(planned(**{**words, "micro_batch_size": count, "global_batch_size": each.requests}))
        assert (each.step, each.peak) == (outcome.step, outcome.peak)
        assert each.wait == round(each.step / gained)
        tokens = each.requests * gained * (plan.seq_len if plan.workflow.name == "prefill" else 1)
        assert each.tokens == pytest.approx(float(tokens) * 1e9 / each.step / plan.world)


def test_steps_without_requests_that_are_alike_have_none() -> None:
    assert batch_points(TRIALS, Plan.from_mapping({"seq_len": 64})) == ()
    assert batch_points(TRIALS, Plan.from_mapping({"workflow": "decode", "requests": ["2x1+9"]})) == ()


def test_a_plan_that_does_not_fit_is_among_them() -> None:
    found = batch_points(TRIALS, planned(micro_batch_size=4_000))
    assert (found[-1].own, found[-1].fits) == (True, False)
    assert batch_points(TRIALS, planned(workflow="speculative", seq_len=3))[0].tokens is None
