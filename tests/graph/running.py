"""Runs of a tiny model's stored graph, whole or on a simulated mesh, from the same random weights and tokens."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stagedb.graph import SymGraph
from stagedb.graph.interpreter import Key, Run, run, weight_shapes
from stagedb.graph.operators import Array

BATCH, SEQ = 4, 8


def environment(graph: SymGraph, dp: int = 1, tp: int = 1, hsdp: int = 1) -> dict[str, int]:
    """What a plan binds: degrees, the global micro-batch, the sequence, dtype widths."""
    widths = {f"e_{name}": 2 for name in ("act", "param", "grad", "reduce", "opt", "logits")}
    return {
        **graph.sizes,
        **widths,
        "copies": 1,
        "runs": 2,
        "B": BATCH,
        "S": SEQ,
        "dp": dp,
        "tp": tp,
        "cp": 1,
        "ep": 1,
        "pp": 1,
        "hsdp": hsdp,
    }


@dataclass(frozen=True)
class Example:
    """One batch and one set of weights of a graph."""

    graph: SymGraph
    weights: Mapping[Key, Array]
    tokens: Array
    labels: Array

    def run(
        self, dp: int = 1, tp: int = 1, weights: Mapping[Key, Array] | None = None, hsdp: int = 1, every: int = 1
    ) -> Run:
        """One step on dp·tp simulated ranks."""
        env = environment(self.graph, dp, tp, hsdp)
        return run(self.graph, env, weights or self.weights, self.tokens, self.labels, every)


def example(graph: SymGraph, seed: int = 0) -> Example:
    """Random weights, tokens and labels."""
    rng = np.random.default_rng(seed)
    env = environment(graph)
    weights = {key: rng.normal(size=shape) * 0.3 for key, shape in weight_shapes(graph, env).items()}
    tokens, labels = rng.integers(0, graph.sizes["V"], (2, BATCH, SEQ))
    return Example(graph, weights, tokens, labels)
