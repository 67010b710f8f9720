"""Zero experts, which return their token (LongCat-Flash): the choice among all experts, and what zero experts give.

The choice of a token is among E experts with weights and Z zero experts. The plan decides the load here too: of a
token's choices those with the largest scores go to experts with weights, and as many are of zero experts for every
token as in the mean over all experts (arXiv 2509.01322, section 2.1).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.operators._base import Array, Operator, RankPlace, arriving
from stagedb.workflows.training import INPUT_GRADIENT

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer

Gradients = Iterator[tuple[int, "Tensor"]]


@dataclass(frozen=True)
class TopKOfAll(Operator):
    """The largest scores of each token and where they are: (batch, seq, all_experts) to two of (batch, seq,
    all_choices)."""

    kind: ClassVar[str] = "topk"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        grad = tracer.gradient(op.inputs[0], f"{op.name}.input_gradient")
        reads = (arriving(grads), op.outputs[1])
        tracer.emit(grad.name, TopKOfAllGradient(), reads, grad, template=INPUT_GRADIENT)
        yield 0, grad

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        (scores,) = inputs
        best = np.argsort(-scores, axis=-1, kind="stable")[..., : place.sizes["all_choices"]]
        return [np.take_along_axis(scores, best, axis=-1), best]


@dataclass(frozen=True)
class TopKOfAllGradient(Operator):
    """The backward of `TopKOfAll`: the gradient of the chosen scores, zeros for the others."""

    kind: ClassVar[str] = "topk"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, best = inputs
        grad = np.zeros((*dy.shape[:-1], place.sizes["all_experts"]), dy.dtype)
        np.put_along_axis(grad, best, dy, axis=-1)
        return [grad]


@dataclass(frozen=True)
class ZeroExperts(Operator):
    """What zero experts give a token: the token times the sum of their weights, (batch, seq, hidden) and (batch, seq,
    zero_choices) to (batch, seq, hidden)."""

    kind: ClassVar[str] = "elementwise"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        name = f"{op.name}.input_gradient"
        made = [tracer.gradient(x, f"{name}.{i}") for i, x in enumerate(op.inputs)]
        tracer.emit(name, ZeroExpertsGradient(), (arriving(grads), *op.inputs), *made, template=INPUT_GRADIENT)
        yield from enumerate(made)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        x, weights = inputs
        return [x * weights.sum(axis=-1, keepdims=True)]


@dataclass(frozen=True)
class ZeroExpertsGradient(Operator):
    """The backward of `ZeroExperts`: the gradients of the token and of the weights."""

    kind: ClassVar[str] = "elementwise"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, x, weights = inputs
        each = (dy * x).sum(axis=-1, keepdims=True)
        return [dy * weights.sum(axis=-1, keepdims=True), np.broadcast_to(each, weights.shape).copy()]


OPERATORS: tuple[type[Operator], ...] = (TopKOfAll, TopKOfAllGradient, ZeroExperts, ZeroExpertsGradient)
