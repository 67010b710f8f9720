"""A step on pipeline stages computes what the whole graph computes: cuts, micro-batches and what runs for which."""

import dataclasses
import functools
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagedb.graphs.model_graph import build_graph
from stagedb.ir import SymGraph, SymOp, When
from stagedb.plans import GraphOptions
from stagedb.schedules import SCHEDULES, placement_of
from stagedb.workflows import Template
from stagedb.workflows.training import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from tests.ir.environments import BATCH, SEQ, environment
from tests.ir.tiny import card
from tests.sampling import examples
from tests.semantics.mesh import SimulatedMesh, Value
from tests.semantics.running import Example, example, pipeline
from tests.semantics.stage import Key, Stage
from tests.semantics.step import Pipeline, Run, run
from tests.semantics.test_partitioned import agree, context, options

UNCHUNKED = [name for name, schedule in SCHEDULES.items() if not schedule.several_chunks]
MICROBATCHES = 3


@functools.lru_cache(maxsize=64)
def whole_run(style: str, kv_heads: int, tied: bool, layers: int, plain: GraphOptions, microbatches: int) -> Run:
    """What a graph with nothing shared, partitioned or recomputed gives."""
    model = card(style, layers=layers, kv_heads=kv_heads, tied=tied)
    return example(build_graph(model, plain), microbatches=microbatches).run_whole()


@settings(max_examples=examples(60), deadline=None)
@given(
    style=st.sampled_from(["llama", "gpt"]),
    kv_heads=st.sampled_from([1, 2, 4]),
    tied=st.booleans(),
    chosen=options(),
    sharing=st.sampled_from([(1, 1), (2, 1), (4, 1), (4, 2), (2, 2)]),
    tp=st.sampled_from([1, 2, 4]),
    schedule=st.sampled_from([*SCHEDULES]),
    stage_layers=st.sampled_from([(2,), (1, 1), (0, 2), (2, 0), (1, 1, 1)]),
    microbatches=st.integers(1, MICROBATCHES),
    chunks=st.sampled_from([(1, 1, 1, 1), (2, 1, 1, 1), (0, 1, 2, 0), (1, 1, 1, 1, 1, 1)]),
    scattered=st.booleans(),
    placed=st.sampled_from([None, "v", "0,0,1,1", "1,0,0,1"]),
)
def test_loss_and_gradients_do_not_depend_on_the_pipeline(
    style: str,
    kv_heads: int,
    tied: bool,
    chosen: GraphOptions,
    sharing: tuple[int, int],
    tp: int,
    schedule: str,
    stage_layers: tuple[int, ...],
    microbatches: int,
    chunks: tuple[int, ...],
    scattered: bool,
    placed: str | None,
) -> None:
    each = 1
    if placed is not None:  # other orders of several chunks may never end then
        schedule, chunks = "breadth-first", chunks[:4]
    if chosen.recipe == "megatron" and not chosen.sp:
        chosen = dataclasses.replace(chosen, scatter_gather=scattered)
    if SCHEDULES[schedule].several_chunks:  # two stages of two or three chunks
        chunks = chunks if SCHEDULES[schedule].chunks is None else chunks[: 2 * (SCHEDULES[schedule].chunks or 1)]
        stage_layers, microbatches, each = chunks, 2 * microbatches, len(chunks) // 2
        if SCHEDULES[schedule].fewest:
            microbatches = max(4, microbatches)  # two a stage
        # Tied weights are added over the first and the last stage.
        ends = [placement_of(schedule, placed).stage(number, 2) for number in (0, len(chunks) - 1)]
        tied = tied and ends == [0, 1]
    if style == "gpt" or chosen.recipe == "megatron":
        kv_heads = 4  # a packed projection cannot repeat its K/V heads
    dp, hsdp = sharing if chosen.zero > (chosen.recipe == "torch") else (sharing[0], 1)
    model = card(style, layers=sum(stage_layers), kv_heads=kv_heads, tied=tied)
    plain = dataclasses.replace(
        chosen,
        zero=0,
        reshard=None,
        grad_sync=None,
        sp=False,
        recompute="none",
        recompute_operators=(),
        recompute_modules=(),
        early_stop=None,
        cp_kind="none",
        cp_chunks="none",
        scatter_gather=False,
    )
    graph = build_graph(model, chosen)
    made = example(graph, microbatches=microbatches)
    cp, cpa, tp = context(chosen, kv_heads, 2, tp)
    stages = pipeline(graph, schedule, stage_layers, microbatches, each, placed)
    part = made.run_pipelined(stages, dp, tp, hsdp, cp, cpa=cpa)
    agree(part, whole_run(style, kv_heads, tied, sum(stage_layers), plain, microbatches))


def tiny(chosen: GraphOptions, tied: bool = False) -> Example:
    return example(build_graph(card("llama", kv_heads=4, tied=tied), chosen), microbatches=MICROBATCHES)


def plan(made: Example, schedule: str = "1f1b") -> Pipeline:
    return pipeline(made.graph, schedule, (1, 1), MICROBATCHES)


def with_ops(made: Example, changed: Callable[[SymOp], SymOp | None]) -> Example:
    """The example with each op of its graph changed, or left out."""
    ops = tuple(op for op in map(changed, made.graph.ops) if op is not None)
    return dataclasses.replace(made, graph=dataclasses.replace(made.graph, ops=ops))


@pytest.mark.parametrize("schedule", UNCHUNKED)
def test_micro_batches_make_the_step_of_the_whole_batch_at_once(schedule: str) -> None:
    made = tiny(GraphOptions())
    env = {**environment(made.graph), "B": MICROBATCHES * BATCH}
    agree(
        made.run_pipelined(plan(made, schedule), 2, 2),
        run(made.graph, env, made.weights, made.tokens, made.labels),
    )


@pytest.mark.parametrize("template", [FORWARD, INPUT_GRADIENT])
def test_a_message_that_is_lost_is_seen(template: Template, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tiny(GraphOptions(sp=True))
    agree(made.run_pipelined(plan(made), 2, 2), made.run_whole())
    honest = Stage.receive

    def receive(self: Stage, what: str, microbatch: int) -> Generator[str, None, Value]:
        arrived = yield from honest(self, what, microbatch)
        lost = what == template.name and microbatch == MICROBATCHES - 1
        return [np.zeros_like(array) for array in arrived] if lost else arrived

    monkeypatch.setattr(Stage, "receive", receive)
    with pytest.raises(AssertionError):
        agree(made.run_pipelined(plan(made), 2, 2), made.run_whole())


@pytest.mark.parametrize("template", [FORWARD, INPUT_GRADIENT])
def test_a_message_to_the_wrong_rank_is_seen(template: Template, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tiny(GraphOptions(sp=True))
    whole = made.run_whole()
    honest = Stage.receive

    def receive(self: Stage, what: str, microbatch: int) -> Generator[str, None, Value]:
        arrived = yield from honest(self, what, microbatch)
        return arrived[::-1] if what == template.name else arrived

    monkeypatch.setattr(Stage, "receive", receive)
    with pytest.raises(AssertionError):
        agree(made.run_pipelined(plan(made), 2, 2), whole)


CUTS = ["cut.send_forward", "cut.recv_forward", "cut.send_backward", "cut.recv_backward"]


@pytest.mark.parametrize("name", CUTS)
def test_a_missing_cut_is_seen(name: str) -> None:
    made = with_ops(tiny(GraphOptions()), lambda op: None if op.name == name else op)
    with pytest.raises(ValueError, match="between stages"):
        made.run_pipelined(plan(made))


@pytest.mark.parametrize("name", CUTS)
def test_a_cut_in_another_layout_is_seen(name: str) -> None:
    """Under sequence parallelism a message is a part of the sequence: one of it whole is not what the blocks hold."""
    made = tiny(GraphOptions(sp=True))

    def changed(graph: SymGraph, **fields: tuple[str, ...]) -> Example:
        tensors = tuple(dataclasses.replace(t, **fields) if t.name == name else t for t in graph.tensors)  # type: ignore[arg-type]
        return dataclasses.replace(made, graph=dataclasses.replace(graph, tensors=tensors))

    row = next(t for t in made.graph.tensors if t.name == name)
    assert "tp:partitioned(seq)" in row.layout
    whole = changed(made.graph, layout=tuple(text for text in row.layout if not text.startswith("tp:")))
    with pytest.raises(ValueError, match="nothing between them moves it"):
        whole.run_pipelined(plan(whole), 2, 2)
    longer = changed(made.graph, local=row.shape)
    with pytest.raises(ValueError, match="stored as"):
        longer.run_pipelined(plan(longer), 2, 2)


SCATTERED = GraphOptions(recipe="megatron", scatter_gather=True)


@pytest.mark.parametrize("schedule", UNCHUNKED)
def test_scattered_messages_are_parts_that_make_the_whole(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tiny(SCATTERED)
    honest, posted = Stage.receive, list[int]()

    def receive(self: Stage, what: str, microbatch: int) -> Generator[str, None, Value]:
        arrived = yield from honest(self, what, microbatch)
        posted.extend(array.size for array in arrived)
        return arrived

    monkeypatch.setattr(Stage, "receive", receive)
    agree(made.run_pipelined(plan(made, schedule), 2, 4), made.run_whole())
    # The eight ranks of two replicas, for each micro-batch forward and backward: a quarter of what one has.
    assert posted == [BATCH * SEQ * made.graph.sizes["H"] // 2 // 4] * (MICROBATCHES * 2 * 8)


@pytest.mark.parametrize("name", ["cut.gather_forward", "cut.gather_backward"])
def test_parts_that_nobody_gathers_are_seen(name: str) -> None:
    made = tiny(SCATTERED)
    broken = with_ops(made, lambda op: None if op.name == name else op)
    with pytest.raises(ValueError, match="nothing between them moves it"):
        broken.run_pipelined(plan(broken), 1, 2)


@pytest.mark.parametrize("name", ["cut.send_forward", "cut.send_backward"])
def test_another_part_of_a_message_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tiny(SCATTERED)
    whole, honest = made.run_whole(), SimulatedMesh.execute

    def execute(self: SimulatedMesh, op: SymOp, inputs: list[Value], step: int = 0, layer: int = 0) -> list[Value]:
        found = honest(self, op, inputs, step, layer)
        return [each[::-1] for each in found] if op.name == name else found

    monkeypatch.setattr(SimulatedMesh, "execute", execute)
    with pytest.raises(AssertionError):
        agree(made.run_pipelined(plan(made), 1, 2), whole)


def overwrite(self: Stage, key: Key, passed: int, value: Value) -> None:
    """What `Stage.accumulate` does not do."""
    self.summed[key, passed] = value


SYNCED = {
    "ddp": GraphOptions(grad_sync=False),
    "ddp, every": GraphOptions(grad_sync=True),
    "distributed optimizer": GraphOptions(recipe="megatron", zero=1),
    "fsdp": GraphOptions(zero=3),
    "fsdp, kept": GraphOptions(zero=2),
    "megatron fsdp": GraphOptions(recipe="megatron", zero=3),
}


@pytest.mark.parametrize("chosen", SYNCED.values(), ids=SYNCED)
def test_when_gradients_are_reduced_matters(chosen: GraphOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every micro-batch or the last is the same while what has been reduced adds up, the first alone never is."""
    made = tiny(chosen)
    whole = made.run_whole()

    def due(when: When) -> Example:
        return with_ops(
            made,
            lambda op: (
                dataclasses.replace(op, when=when) if op.block == "bucket" and op.template is WEIGHT_GRADIENT else op
            ),
        )

    for when in (When.EVERY, When.LAST):
        agree(due(when).run_pipelined(plan(made), 2), whole)
    with pytest.raises(AssertionError):
        agree(due(When.FIRST).run_pipelined(plan(made), 2), whole)
    monkeypatch.setattr(Stage, "accumulate", overwrite)
    for when in (When.EVERY, When.LAST):
        with pytest.raises(AssertionError):
            agree(due(when).run_pipelined(plan(made), 2), whole)


@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize("schedule", UNCHUNKED)
def test_a_gather_that_comes_too_late_or_never_is_seen(schedule: str, zero: int) -> None:
    made = tiny(GraphOptions(zero=zero))
    agree(made.run_pipelined(plan(made, schedule), 2), made.run_whole())
    present = SimulatedMesh(made.graph, environment(made.graph, 2, pp=2)).present
    gathers = [op for op in made.graph.ops if op.kind == "all_gather" and op.name in present]
    # Units that stay gathered; or what is outside layers, and layers before their forward and their backward.
    assert len(gathers) == {2: 1, 3: 3}[zero]
    for gather in gathers:
        for fields in ({"when": When.LAST}, {"present": "0"}):
            broken = with_ops(
                made,
                lambda op, gather=gather, fields=fields: (  # type: ignore[misc]
                    dataclasses.replace(op, **fields) if op is gather else op
                ),
            )
            with pytest.raises(KeyError):
                broken.run_pipelined(plan(made, schedule), 2)


@pytest.mark.parametrize("zero", [0, 3])
def test_a_tied_weight_s_ends_must_be_summed(zero: int) -> None:
    made = tiny(GraphOptions(zero=zero), tied=True)
    whole = made.run_whole()
    agree(made.run_pipelined(plan(made), 2), whole)
    ends = [op for op in made.graph.ops if op.axis == "embedding"]
    assert len(ends) == 2
    broken = with_ops(made, lambda op: dataclasses.replace(op, present="0") if op in ends else op)
    with pytest.raises(AssertionError):
        agree(broken.run_pipelined(plan(made), 2), whole)
    alone = with_ops(made, lambda op: dataclasses.replace(op, present="0") if op is ends[0] else op)
    with pytest.raises(ValueError, match="never end"):
        alone.run_pipelined(plan(made), 2)


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        # Positions: the embedding, then layers 0 1 | 2 | 3 | 4 5 of stages 0, 1, 0, 1; every second of a stage's own.
        ({"recompute_every": 2}, [(0, 2), (1,), (2,), (3, 5)]),
        # The first of each chunk.
        ({"recompute_first": 1}, [(0, 1), (1, 3), (2, 4), (3, 5)]),
    ],
    ids=str,
)
def test_recomputed_layers_are_counted_over_a_stage_or_in_each_chunk(
    which: dict[str, Any], expected: list[tuple[int, ...]]
) -> None:
    made = example(build_graph(card("llama", layers=6), GraphOptions(recompute="full")), microbatches=2)
    chosen = pipeline(made.graph, "interleaved", (2, 1, 1, 2), 2, chunks=2)
    stages: list[Stage] = []
    honest = Stage.step

    def step(self: Stage) -> Generator[str, None, None]:
        stages.append(self)
        yield from honest(self)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Stage, "step", step)
        env = environment(made.graph, pp=2)
        part = run(made.graph, env, made.weights, made.tokens, made.labels, chosen, **which)
    agree(part, made.run_whole())
    assert sorted((stage.index, *stage.recomputing) for stage in stages) == expected


def test_a_weight_gradient_that_reads_what_its_half_does_not_have_is_seen() -> None:
    """What an input gradient makes is there for the weight gradient of its micro-batch alone, and once."""
    made = example(build_graph(card("llama"), GraphOptions()), microbatches=1)
    late = [("forward", 0), ("weight_gradient", 0), ("input_gradient", 0), ("step", 0)]
    with pytest.raises(KeyError):
        made.run_pipelined(Pipeline((4,), (late,)))


def test_orders_that_wait_for_each_other_are_an_error() -> None:
    made = example(build_graph(card("llama"), GraphOptions()), microbatches=2)
    first = [("forward", 0), ("backward", 0), ("forward", 1), ("backward", 1), ("step", 0)]
    second = [("forward", 1), ("backward", 1), ("forward", 0), ("backward", 0), ("step", 0)]
    agree(made.run_pipelined(Pipeline((2, 2), (first, first))), made.run_whole())
    with pytest.raises(ValueError, match=r"never end: stage 0 waits for the input_gradient of micro-batch 0; stage 1"):
        made.run_pipelined(Pipeline((2, 2), (first, second)))


@pytest.mark.parametrize(
    ("positions", "order", "message"),
    [
        ((4,), [("forward", 0), ("backward", 0), ("step", 0)], "pp is 2"),
        ((2, 1), [("forward", 0), ("backward", 0), ("step", 0)], "do not make the model's 4"),
        ((2, 2), [("forward", 0), ("step", 0)], "each of 1 micro-batches"),
        ((2, 2), [("step", 0), ("forward", 0), ("backward", 0)], "and then the step"),
    ],
)
def test_a_pipeline_that_does_not_suit_is_an_error(
    positions: tuple[int, ...], order: list[tuple[str, int]], message: str
) -> None:
    made = example(build_graph(card("llama"), GraphOptions()))
    with pytest.raises(ValueError, match=message):
        made.run_pipelined(Pipeline(positions, (order, order)))


def test_part_of_a_micro_batch_is_an_error() -> None:
    made = example(build_graph(card("llama"), GraphOptions()))
    short = dataclasses.replace(made, tokens=made.tokens[:3], labels=made.labels[:3])
    with pytest.raises(ValueError, match=f"3 sequences are not whole micro-batches of {BATCH}"):
        short.run()
