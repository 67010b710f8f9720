"""The norm of all gradients, as the messages of `--clip-norm` reduce it, is on every rank the norm on one device."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagedb.graphs.model_graph import build_graph
from stagedb.plans import GraphOptions
from tests.ir.tiny import card
from tests.sampling import examples
from tests.semantics.running import Example, example, pipeline
from tests.semantics.step import Run
from tests.semantics.test_scans import SCAN

PLAIN = GraphOptions()


def norm(run: Run) -> float:
    """The norm of all gradients of a step, each weight once."""
    return float(np.sqrt(sum(np.sum(np.square(gradient)) for gradient in run.gradients.values())))


def made(style: str, tied: bool, layers: int = 2, **words: Any) -> tuple[Example, float]:
    """A clipping graph, and the norm on one device."""
    model = card(style, layers=layers, kv_heads=4, tied=tied)
    options = dataclasses.replace(PLAIN, clip_norm=True, **words)
    whole = example(build_graph(model, dataclasses.replace(PLAIN, dropout=options.dropout)), microbatches=2).run_whole()
    return example(build_graph(model, options), microbatches=2), norm(whole)


def assert_everywhere(run: Run, expected: float, ranks: int) -> None:
    assert len(run.norms) == ranks
    assert run.norms == pytest.approx([expected] * ranks, rel=1e-9)


DEGREES = [(2, 1, 1, 1), (4, 1, 1, 1), (2, 2, 1, 1), (4, 2, 1, 2), (2, 2, 2, 1), (1, 1, 2, 1), (2, 4, 1, 1)]
"""The degrees dp, tp, cp and hsdp of each mesh."""


@settings(max_examples=examples(15), deadline=None)
@given(
    style=st.sampled_from(["llama", "gpt", "qwen3"]),
    tied=st.booleans(),
    zero=st.sampled_from([2, 3]),
    sp=st.booleans(),
    degrees=st.sampled_from(DEGREES),
    stages=st.sampled_from([(2,), (1, 1)]),
)
def test_every_rank_has_the_norm_of_all_gradients(
    style: str, tied: bool, zero: int, sp: bool, degrees: tuple[int, int, int, int], stages: tuple[int, ...]
) -> None:
    """Weights of norms are whole over tp, tables in parts."""
    dp, tp, cp, hsdp = degrees
    kind = "allgather-kv" if cp > 1 else "none"
    some, expected = made(style, tied, zero=zero, sp=sp, cp_kind=kind)
    plan = pipeline(some.graph, "1f1b", stages, 2)
    run = some.run_pipelined(plan, dp, tp, hsdp, cp)
    assert_everywhere(run, expected, len(stages) * dp * tp * cp)


@pytest.mark.parametrize("expert_tp", [False, True])
@pytest.mark.parametrize("sp", [False, True])
@pytest.mark.parametrize(("dp", "tp", "ep"), [(2, 1, 2), (4, 1, 2), (4, 2, 2), (2, 2, 1)])
@pytest.mark.parametrize("style", ["moe", "deepseek"])
def test_experts_and_other_weights_have_one_norm(
    style: str, dp: int, tp: int, ep: int, sp: bool, expert_tp: bool
) -> None:
    some, expected = made(style, tied=False, layers=4, zero=3, sp=sp, expert_tp=expert_tp)
    for stages in ((4,), (2, 2)):
        run = some.run_pipelined(pipeline(some.graph, "1f1b", stages, 2), dp, tp, ep=ep)
        assert_everywhere(run, expected, len(stages) * dp * tp)


@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("words", [{"sinks": True}, SCAN], ids=["sinks", "scan"])
def test_ranks_that_exchange_heads_have_one_norm(words: dict[str, Any], zero: int) -> None:
    """Weights of heads are whole on each of them, and their gradients are summed."""
    kinds: Any = {"layer": words}
    model = dataclasses.replace(card("llama", layers=2, kv_heads=4), layer_kinds=kinds, pattern=("layer",))
    expected = norm(example(build_graph(model, PLAIN), microbatches=2).run_whole())
    some = example(build_graph(model, GraphOptions(clip_norm=True, zero=zero, cp_kind="ulysses")), microbatches=2)
    for stages in ((2,), (1, 1)):
        run = some.run_pipelined(pipeline(some.graph, "1f1b", stages, 2), dp=2, cp=2)
        assert_everywhere(run, expected, len(stages) * 4)


@pytest.mark.parametrize("tied", [False, True])
def test_stages_alone_add_up_their_norms(tied: bool) -> None:
    some, expected = made("llama", tied)
    assert_everywhere(some.run_pipelined(pipeline(some.graph, "1f1b", (1, 1), 2), dp=2), expected, 4)


@pytest.mark.parametrize(
    ("words", "degrees", "lost"),
    [
        ({"zero": 3}, {"dp": 2}, "bucket.norms.dp"),
        ({"zero": 3}, {"dp": 2, "tp": 2}, "bucket.norms.tp"),
        ({}, {}, "bucket.norms.pp"),
        ({"zero": 3}, {"dp": 2, "ep": 2}, "bucket.norms.ep.experts"),
        ({"zero": 3}, {"dp": 4, "ep": 2}, "bucket.norms.edp.experts"),
        ({"zero": 3}, {"dp": 4, "ep": 2}, "bucket.norms.dp.dense"),
        ({"zero": 3}, {"dp": 4, "ep": 2, "tp": 2}, "bucket.norms.tp.experts"),
    ],
)
def test_a_norm_that_is_not_reduced_is_seen(words: dict[str, Any], degrees: dict[str, int], lost: str) -> None:
    some, expected = made("moe" if "ep" in degrees else "llama", tied=False, **words)
    ops = tuple(op for op in some.graph.ops if op.name != lost)
    assert len(ops) == len(some.graph.ops) - 1
    some = dataclasses.replace(some, graph=dataclasses.replace(some.graph, ops=ops))
    run = some.run_pipelined(pipeline(some.graph, "1f1b", (1, 1), 2), **degrees)
    assert max(abs(each / expected - 1) for each in run.norms) > 1e-4
