"""Runs of a tiny model's stored graph, whole or on simulated ranks and stages, from the same random values."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest

from stagedb.ir import SymGraph
from stagedb.ir.expressions import evaluate
from stagedb.ir.operators import Array
from stagedb.lowering.stage_blocks import Block, lay_out
from stagedb.schedules import placement_of, stage_orders
from tests.ir.environments import BATCH, SEQ, environment
from tests.semantics.mesh import SimulatedMesh
from tests.semantics.stage import Key
from tests.semantics.step import Pipeline, Run, forward_loss, run, weight_shapes


def pipeline(
    graph: SymGraph,
    schedule: str,
    stage_layers: tuple[int, ...],
    microbatches: int,
    chunks: int = 1,
    placed: str | None = None,
) -> Pipeline:
    """The numbers of the pipeline, of so many layers each, with the orders of a schedule."""
    repeats = [None if spec.once else evaluate(spec.repeat, graph.sizes) for spec in graph.blocks]
    blocks = [Block(spec.name, times, spec.layers) for spec, times in zip(graph.blocks, repeats, strict=True)]
    placement = placement_of(schedule, placed)
    stages = lay_out(blocks, stage_layers, chunks=chunks, placement=placement)
    orders = stage_orders(schedule, len(stages) // chunks, microbatches, chunks)
    return Pipeline(
        [len(stage.places) for stage in stages],
        [[(str(task.kind), task.microbatch, task.chunk) for task in order] for order in orders],
        placement,
    )


@dataclass(frozen=True)
class Example:
    """One batch and one set of weights of a graph."""

    graph: SymGraph
    weights: Mapping[Key, Array]
    tokens: Array
    labels: Array
    load: tuple[int, ...] = ()

    def run(
        self,
        dp: int = 1,
        tp: int = 1,
        weights: Mapping[Key, Array] | None = None,
        hsdp: int = 1,
        every: int = 1,
        cp: int = 1,
        ep: int = 1,
        cpa: int = 1,
        epr: int = 1,
    ) -> Run:
        """One step on dp·cp·tp simulated ranks."""
        env = environment(self.graph, dp, tp, hsdp, cp=cp, ep=ep, load=self.load, cpa=cpa, epr=epr)
        data = (weights or self.weights, self.tokens, self.labels)
        return run(self.graph, env, *data, recompute_every=every, expert_load=self.load)

    @cached_property
    def _alone(self) -> SimulatedMesh:
        """One rank, on which nothing is partitioned."""
        return SimulatedMesh(self.graph, environment(self.graph, load=self.load), self.load)

    def loss(self, key: Key, value: Array) -> float:
        """The loss with another value of one weight, on one rank."""
        return forward_loss(self._alone, {**self.weights, key: value}, self.tokens, self.labels)

    def run_pipelined(
        self, plan: Pipeline, dp: int = 1, tp: int = 1, hsdp: int = 1, cp: int = 1, ep: int = 1, cpa: int = 1
    ) -> Run:
        """One step on stages of dp·cp·tp simulated ranks."""
        env = environment(self.graph, dp, tp, hsdp, len(plan.orders), cp, ep, self.load, cpa=cpa)
        return run(self.graph, env, self.weights, self.tokens, self.labels, plan, expert_load=self.load)

    def run_whole(self) -> Run:
        """The mean of steps that run each micro-batch by itself, with nothing partitioned."""
        starts = range(0, len(self.tokens), BATCH)
        env = environment(self.graph, load=self.load)
        parts = [(self.tokens[at : at + BATCH], self.labels[at : at + BATCH]) for at in starts]
        runs = [run(self.graph, env, self.weights, *part, expert_load=self.load) for part in parts]
        gradients = {key: np.mean([each.gradients[key] for each in runs], axis=0) for key in runs[0].gradients}
        return Run(float(np.mean([each.loss for each in runs])), gradients)


def example(graph: SymGraph, seed: int = 0, microbatches: int = 1) -> Example:
    """Random weights, tokens and labels."""
    rng = np.random.default_rng(seed)
    env = environment(graph)
    weights = {key: rng.normal(size=shape) * 0.3 for key, shape in weight_shapes(graph, env).items()}
    tokens, labels = rng.integers(0, graph.sizes["V"], (2, microbatches * BATCH, SEQ))
    return Example(graph, weights, tokens, labels)


def check_slopes(made: Example, gradients: Mapping[Key, Array]) -> None:
    """Assert that each gradient is the slope of the loss along a direction of its weight."""
    rng = np.random.default_rng(7)
    for key, gradient in gradients.items():
        value = made.weights[key]
        direction = rng.normal(size=value.shape)
        step = 1e-5 / np.linalg.norm(direction)
        ends = [made.loss(key, value + sign * step * direction) for sign in (1, -1)]
        slope = (ends[0] - ends[1]) / (2 * step)
        assert float((gradient * direction).sum()) == pytest.approx(slope, rel=1e-4, abs=1e-6), key
