"""Look-ups in the vocabulary's table (possibly this rank's rows of it) and in the table of positions."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.operators._base import Array, Operator, RankPlace, arriving
from stagedb.workflows.training import WEIGHT_GRADIENT

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer


@dataclass(frozen=True)
class Embedding(Operator):
    """Rows of the table. A token whose row is on another rank gives zeros, so the result is a partial sum.

    The kernel reads a row for each token, not the table.
    """

    kind: ClassVar[str] = "embedding"
    gradient_region: ClassVar[str | None] = "embedding_gradient"

    def reads(self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]) -> tuple["Tensor", ...]:
        tokens, table = inputs
        return tokens, replace(outputs[0], dtype=table.dtype)

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        tokens, table = op.inputs
        grad = tracer.gradient(table, f"{op.name}.weight_gradient")
        reads = (tokens, arriving(grads))
        tracer.emit(grad.name, EmbeddingGradient(), reads, grad, template=WEIGHT_GRADIENT)
        yield 1, grad

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        tokens, table = inputs
        local = tokens - place.starts.get("vocab", 0)
        here = (local >= 0) & (local < len(table))
        return [np.where(here[..., None], table[np.where(here, local, 0)], 0)]


@dataclass(frozen=True)
class EmbeddingGradient(Operator):
    """Adds each token's gradient to its row, where this rank holds the row.

    The kernel writes the whole gradient of the table, zeros first (torch: `embedding_dense_backward`).
    """

    kind: ClassVar[str] = "embedding"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        tokens, dy = inputs
        rows = place.lengths["vocab"]
        local = tokens - place.starts.get("vocab", 0)
        here = (local >= 0) & (local < rows)
        grad = np.zeros((rows, dy.shape[-1]), dy.dtype)
        np.add.at(grad, local[here], dy[here])
        return [grad]


@dataclass(frozen=True)
class PositionEmbedding(Operator):
    """Looks up learned positions for this rank's part of the sequence. The result has axes (seq, hidden)."""

    kind: ClassVar[str] = "embedding"

    def reads(self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]) -> tuple["Tensor", ...]:
        return (replace(outputs[0], dtype=inputs[0].dtype),)

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        grad = tracer.gradient(op.inputs[0], f"{op.name}.weight_gradient")
        tracer.emit(grad.name, PositionEmbeddingGradient(), (arriving(grads),), grad, template=WEIGHT_GRADIENT)
        yield 0, grad

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [inputs[0][place.positions()]]


@dataclass(frozen=True)
class PositionEmbeddingGradient(Operator):
    """The gradient of the table of positions: this part's rows, zeros elsewhere."""

    kind: ClassVar[str] = "embedding"
    linear: ClassVar[bool] = True

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy = inputs[0]
        grad = np.zeros((place.lengths["positions"], dy.shape[-1]), dy.dtype)
        grad[place.positions()] = dy
        return [grad]
