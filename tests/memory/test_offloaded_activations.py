"""Inputs of recomputed layers on the host: what a rank and its host hold, the copies, their time, and refusals.

PyTorch's `offload_wrapper(checkpoint_wrapper(layer))` packs one tensor a call, which is the layer's input, and unpacks
it once (counted with hooks around `save_on_cpu` in torch 2.15).
"""

import dataclasses
from fractions import Fraction
from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.ir.operators import Multiple, dump
from stagedb.lowering import Program
from stagedb.memory import Category, ClassMemory, memory_of
from stagedb.models import Card
from stagedb.plans import GraphOptions
from stagedb.systems import load_system
from stagedb.timing import profile_job
from tests import lowered
from tests.ir.environments import SEQ
from tests.ir.tiny import card
from tests.memory.test_offload import HOST, moved
from tests.semantics.running import example
from tests.semantics.test_experts import assert_same

LAYERS = 8
WORDS: dict[str, Any] = {"recompute": "full", "seq_len": SEQ}


def tiny() -> Card:
    return card("llama", layers=LAYERS, kv_heads=4)


INPUT = SEQ * tiny().hidden * 2
"""Bytes of the input of a layer for one sequence, in bf16."""


def made(**words: Any) -> Program:
    return lowered.program(tiny(), **{**WORDS, "offload": "activations", **words})


def kept(found: ClassMemory) -> int:
    """Bytes that the forward leaves for the backward."""
    return dict(found.ends())["forward_end"]["activations"]


@pytest.mark.parametrize(
    ("which", "layers"),
    [({}, LAYERS), ({"recompute_every": 2}, LAYERS // 2), ({"recompute_first": 3}, 3)],
    ids=str,
)
def test_the_host_has_the_inputs_of_layers_that_recompute(which: dict[str, Any], layers: int) -> None:
    (usual,), (offloaded,) = memory_of(made(offload="none", **which)), memory_of(made(**which))
    assert kept(usual) - kept(offloaded) == layers * INPUT
    assert offloaded.usage.on_host() == {Category.ACTIVATIONS: layers * INPUT}
    assert usual.usage.on_host() == {}
    program = made(**which)
    assert moved(program, 0, "copy_to_host") == moved(program, 0, "copy_from_host") == layers * INPUT


def test_a_rank_of_tp_under_sp_copies_its_part() -> None:
    program = made(tp=2, sp=True)
    assert moved(program, 0, "copy_to_host") == LAYERS * INPUT // 2


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_the_host_has_those_of_all_micro_batches_in_flight(schedule: str) -> None:
    """1F1B: min(p - i, m) on stage i (Narayanan et al. 2021); GPipe: m (Huang et al. 2019)."""
    stages, microbatches = 4, 3
    for found in memory_of(made(pp=stages, schedule=schedule, global_batch_size=microbatches)):
        for stage in found.rank_class.stages:
            inflight = microbatches if schedule == "gpipe" else min(stages - stage, microbatches)
            assert found.usage.on_host() == {Category.ACTIVATIONS: inflight * LAYERS // stages * INPUT}


def test_no_layer_is_computed_again_before_its_input_is_back() -> None:
    columns = made().workload.class_of(0)
    edges, names = columns.edges, columns.ops.name
    pairs = {(names[a], names[b]) for a, b in zip(edges.source.tolist(), edges.target.tolist(), strict=True)}
    for layer in range(LAYERS):
        down, up = f"layer.{layer}.input.to_host", f"layer.{layer}.input.from_host"
        before = f"layer.{layer - 1}.ffn.add" if layer else "embedding.word"
        assert {(before, down), (down, up), (up, f"layer.{layer}.attn_norm.recompute")} <= pairs
        order = [names.index(name) for name in (down, f"layer.{layer}.attn_norm")]
        assert order == sorted(order)


MESHES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "alone": ({}, {}),
    "tp, sp, zero 3": ({"sp": True, "zero": 3}, {"dp": 2, "tp": 2}),
    "a ring": ({"cp_kind": "ring-alltoall"}, {"cp": 2}),
    "frozen below": ({"frozen": ("embedding",)}, {"dp": 2}),
}


@pytest.mark.parametrize("words", MESHES)
@pytest.mark.parametrize("every", [1, 2])
def test_what_comes_back_is_what_the_layer_had(words: str, every: int) -> None:
    options, degrees = MESHES[words]
    frozen = {"frozen": options["frozen"]} if "frozen" in options else {}
    model = card("llama", kv_heads=4, layers=4)
    whole = example(build_graph(model, GraphOptions(**frozen)))
    graph = build_graph(model, GraphOptions(recompute="full", offload="activations", **options))
    some = dataclasses.replace(whole, graph=graph)
    assert_same(some.run(every=every, **degrees), whole.run())
    doubled = tuple(
        dataclasses.replace(op, semantics=dump(Multiple(2.0))) if op.kind == "copy_from_host" else op
        for op in graph.ops
    )
    changed = dataclasses.replace(some, graph=dataclasses.replace(graph, ops=doubled))
    assert_same(changed.run(every=5, **degrees), whole.run())  # of four layers every fifth is none
    with pytest.raises(AssertionError):
        assert_same(changed.run(every=every, **degrees), whole.run())


def test_kernels_wait_for_copies() -> None:
    program = made()
    system = dataclasses.replace(load_system("h100"), host=HOST)
    free = dataclasses.replace(system, host=dataclasses.replace(HOST, link=float("inf"), latency=Fraction(0)))
    slow, fast = (profile_job(program.workload, each).merit.step for each in (system, free))
    each = int(3000 + Fraction(INPUT, 20) + Fraction(1, 2))
    assert slow - fast == 2 * LAYERS * each


@pytest.mark.parametrize(
    ("words", "way"),
    [
        ({"recipe": "megatron"}, "exist only in PyTorch: --offload activations needs --recipe torch"),
        ({"recompute": "none"}, "needs --recompute full"),
        ({"recompute": "pointwise"}, "needs --recompute full"),
    ],
)
def test_what_pytorch_does_not_wrap_is_refused(words: dict[str, Any], way: str) -> None:
    with pytest.raises(UsageError, match=way):
        made(**words)


def test_layers_that_predict_further_tokens_are_refused() -> None:
    model = dataclasses.replace(tiny(), multi_token_prediction=1)
    with pytest.raises(UsageError, match="needs a card with multi_token_prediction: 0"):
        lowered.program(model, offload="activations", **WORDS)
