"""Sinks outside the attention kernel: its result is scaled by what the sink leaves of the softmax (torchtitan)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.operators._base import Array, Operator, RankPlace, arriving
from stagedb.workflows.training import INPUT_GRADIENT

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer


@dataclass(frozen=True)
class SinkShare(Operator):
    """The share of keys in a softmax that a sink is part of: `sigmoid(lse - sink)`.

    lse (batch, heads, seq) is the log-sum-exp without the sink, whose scores are (heads). The share is (batch, seq,
    heads).
    """

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        name = f"{op.name}.input_gradient"
        made = [tracer.gradient(x, f"{name}.{i}") for i, x in enumerate(op.inputs)]
        reads = (arriving(grads), op.outputs[0])
        tracer.emit(name, SinkShareGradient(), reads, *made, template=INPUT_GRADIENT)
        yield from enumerate(made)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        lse, sinks = inputs
        return [1 / (1 + np.exp(sinks - lse.transpose(0, 2, 1)))]


@dataclass(frozen=True)
class SinkShareGradient(Operator):
    """The backward of `SinkShare`: the gradients of log-sum-exp and sinks, from the share `p`: `dlse = dp · p · (1 -
    p)`, and its negative sum.
    """

    kind: ClassVar[str] = "elementwise"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dp, p = inputs
        slope = dp * p * (1 - p)
        return [slope.transpose(0, 2, 1), -slope.sum(axis=(0, 1))]
