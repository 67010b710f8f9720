"""A training step of a stored graph, run in numpy: whole, or partitioned on simulated ranks and pipeline stages.

It reads nothing but the stored form, so what it proves (autodiff, layouts, collective matching, messages between
stages, which micro-batches a collective runs for) holds for what the database holds. Sizes must be tiny; all
arithmetic is in double precision.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from stagedb.ir.expressions import evaluate
from stagedb.ir.operators import Array
from stagedb.ir.symbolic_graph import SymGraph, When
from stagedb.schedules import LOOP, ChunkPlacement
from tests.semantics.mesh import SimulatedMesh, Value
from tests.semantics.stage import (
    BACKWARD,
    FORWARD,
    HALVES,
    STEP,
    Key,
    Message,
    Stage,
    Task,
    Waiting,
    full,
    run_tasks,
)
from tests.symbolic_rows import parameter


@dataclass(frozen=True)
class Run:
    """What one step computes: the loss and each weight's gradient, whole. Keys are (weight, position of its block).

    norms: the norm of all gradients on each rank, if the graph clips.
    """

    loss: float
    gradients: Mapping[Key, Array]
    norms: tuple[float, ...] = ()


@dataclass(frozen=True)
class Pipeline:
    """How many consecutive positions each number holds, and each stage's tasks in the order of their running.

    placement: the stage and chunk of each number.
    """

    positions: Sequence[int]
    orders: Sequence[Sequence[Task]]
    placement: ChunkPlacement = LOOP


ALONE = ((FORWARD, 0), (BACKWARD, 0), (STEP, 0))
"""The tasks of a step of one micro-batch on one stage."""


def positions(graph: SymGraph, env: Mapping[str, int]) -> list[str]:
    """The blocks of the whole model in forward order."""
    numbered = {number: block.name for block in graph.blocks for number in block.layers or ()}
    if numbered:
        return [graph.blocks[0].name, *(numbered[number] for number in range(env["L"])), graph.blocks[-1].name]
    return [block.name for block in graph.blocks for _ in range(evaluate(block.repeat, env))]


def weight_shapes(graph: SymGraph, env: Mapping[str, int]) -> dict[Key, tuple[int, ...]]:
    """The whole shapes of all weights; a tied copy has none of its own."""
    rows = [t for t in graph.tensors if t.role == "weight" and parameter(t).tied is None]
    return {
        (row.name, place): tuple(evaluate(expr, env, what=row.name) for expr in row.shape)
        for place, block in enumerate(positions(graph, env))
        for row in rows
        if row.block == block
    }


def run(
    graph: SymGraph,
    env: Mapping[str, int],
    weights: Mapping[Key, Array],
    tokens: Array,
    labels: Array,
    pipeline: Pipeline | None = None,
    recompute_every: int = 1,
    expert_load: tuple[int, ...] = (),
    recompute_first: int | None = None,
) -> Run:
    """One training step on pp stages of dp·cp·tp simulated ranks; the loss is the mean over all micro-batches.

    tokens, labels: (micro-batches · B, S), the global micro-batches one after another. pipeline: None is one stage that
    runs one micro-batch. recompute_every: in which layers of a stage, counted from 1, what the graph recomputes is
    recomputed. recompute_first: in the first layers of each chunk alone; None: in all. expert_load: how many of so many
    choices of tokens in a row go to each expert; empty: one to each.
    Raises ValueError where the pipeline does not suit the graph, env or batch, where its orders never end, and where a
    message does not have the layout of the graph; AssertionError where replicas differ.
    """
    places = list(enumerate(positions(graph, env)))
    pipeline = pipeline or Pipeline((len(places),), (ALONE,))
    inputs = {"tokens": tokens, "labels": labels, **_further(graph, labels)}
    batches = [
        {name: values[start : start + env["B"]] for name, values in inputs.items()}
        for start in range(0, len(tokens), env["B"])
    ]
    _check(pipeline, env, len(places), len(tokens), any(op.template.differentiates for op in graph.ops))
    mesh = SimulatedMesh(graph, env, expert_load, 1 / len(batches))
    post: dict[Message, Value] = {}
    bounds = pairwise(accumulate(pipeline.positions, initial=0))
    pp, stages = env["pp"], list[Stage]()
    on = [pipeline.placement.stage(index, pp) for index in range(len(pipeline.positions))]
    for index, (start, end) in enumerate(bounds):
        counted = sum(each.layers for each, stage in zip(stages, on, strict=False) if stage == on[index])
        which = (recompute_every, len(pipeline.positions), counted, recompute_first)
        stages.append(Stage(mesh, index, places[start:end], weights, batches, post, *which))
    of_stage = [[each for each, its in zip(stages, on, strict=True) if its == stage] for stage in range(pp)]
    _run_in_turn([run_tasks(of_stage[stage], order) for stage, order in enumerate(pipeline.orders)])
    norms = tuple(norm for stage in stages for norm in stage.norms)
    return Run(float(np.mean(list(stages[-1].losses.values()))), _together(mesh, stages), norms)


def forward_loss(mesh: SimulatedMesh, weights: Mapping[Key, Array], tokens: Array, labels: Array) -> float:
    """The loss of a micro-batch, from its forward alone: that of `run` on one stage, in a third of its time.

    mesh: one for all weights, so that the graph is read once.
    """
    places = list(enumerate(positions(mesh.graph, mesh.env)))
    inputs = {"tokens": tokens, "labels": labels, **_further(mesh.graph, labels)}
    stage = Stage(mesh, 0, places, weights, [inputs], {})
    for wait in stage.forward(0, set(When)):
        raise ValueError(wait)
    return stage.losses[0]


def _further(graph: SymGraph, labels: Array) -> dict[str, Array]:
    """Labels further on, for layers that predict them. Behind a sequence is its beginning."""
    names = (row.name.rpartition(".")[2] for row in graph.tensors if row.role == "input")
    return {
        name: np.roll(labels, -int(name.rpartition("_")[2]), axis=-1) for name in names if name.startswith("labels_")
    }


def _check(pipeline: Pipeline, env: Mapping[str, int], places: int, sequences: int, trains: bool) -> None:
    """ValueError where a pipeline, a plan and a batch do not belong together. trains: the graph has a backward."""
    chunks, rest = divmod(len(pipeline.positions), env["pp"])
    if not chunks or rest or len(pipeline.orders) != env["pp"]:
        raise ValueError(
            f"{len(pipeline.positions)} stages have positions and {len(pipeline.orders)} have orders, pp is {env['pp']}"
        )
    if sum(pipeline.positions) != places or min(pipeline.positions) < 1:
        raise ValueError(f"stages of {list(pipeline.positions)} positions do not make the model's {places}")
    if not sequences or sequences % env["B"]:
        raise ValueError(f"{sequences} sequences are not whole micro-batches of {env['B']}")
    count = sequences // env["B"]
    ending = [(STEP, 0, 0)] if trains else []
    tasks = [
        sorted([*ending, *((kind, at, chunk) for kind in kinds for at in range(count) for chunk in range(chunks))])
        for kinds in (((FORWARD, BACKWARD), (FORWARD, *HALVES)) if trains else ((FORWARD,),))
    ]
    for stage, order in enumerate(pipeline.orders):
        if sorted(map(full, order)) not in tasks or (trains and full(order[-1]) != (STEP, 0, 0)):
            raise ValueError(f"stage {stage} does not run each of {count} micro-batches once, and then the step")


def _run_in_turn(stages: Sequence[Waiting]) -> None:
    """Let each stage go on until it waits, in turn, until all are done; ValueError where all wait for ever."""
    waits: dict[int, str] = {}
    running: dict[int, Iterator[str]] = dict(enumerate(stages))
    while running:
        before = dict(waits)
        for index, stage in list(running.items()):
            wait = next(stage, None)
            if wait is None:
                del running[index]
                waits.pop(index, None)
            else:
                waits[index] = wait
        # A stage that has gone on waits for something else now, so that equal waits mean that none has.
        if running and waits == before:
            raise ValueError("these orders never end: " + "; ".join(waits.values()))


def _together(mesh: SimulatedMesh, stages: Sequence[Stage]) -> dict[Key, Array]:
    """The gradients of all stages. Both ends of a tied weight have shares of its gradient on one stage, else all."""
    found: dict[Key, Array] = {}
    for stage in stages:
        for (name, place), whole in stage.gradients.items():
            tied = parameter(mesh.tensors[name]).tied
            key = (tied, 0) if tied else (name, place)
            if key not in found:
                found[key] = whole
            elif len(stages) == 1:
                found[key] = found[key] + whole
            else:
                np.testing.assert_allclose(whole, found[key], rtol=1e-9, atol=1e-12, err_msg=f"ends of {tied} differ")
    return found
