"""The softmax over the keys that a query may see, for scores with any axes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.operators._base import Array, Labels, Operator, RankPlace, arriving
from stagedb.ir.operators.experts import ChoiceSoftmaxGradient
from stagedb.workflows.training import INPUT_GRADIENT

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer


@dataclass(frozen=True)
class CausalSoftmax(Operator):
    """The softmax of scores over their last axis, the keys, as far as the tokens of `query` see them.

    axes: those of the scores. A query sees its own token and those before it.
    """

    axes: Labels
    query: str

    kind: ClassVar[str] = "softmax"

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        grad = tracer.gradient(op.inputs[0], f"{op.name}.input_gradient")
        reads = (arriving(grads), op.outputs[0])
        tracer.emit(grad.name, ChoiceSoftmaxGradient(), reads, grad, template=INPUT_GRADIENT)
        yield 0, grad

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        queries, keys = place.positions(self.query), place.indices(self.axes[-1])
        apart = [-1 if axis == self.query else 1 for axis in self.axes]
        scores = np.where(keys <= queries.reshape(apart), inputs[0], -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return [weights / weights.sum(axis=-1, keepdims=True)]
