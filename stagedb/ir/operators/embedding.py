"""Look-ups in the vocabulary's table (possibly this rank's rows of it) and in the table of positions."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.operators._base import Array, Operator, RankPlace, arriving, joined_gradient
from stagedb.workflows.training import WEIGHT_GRADIENT

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer


@dataclass(frozen=True)
class Embedding(Operator):
    """Rows of the table. A token whose row is on another rank gives zeros, so the result is a partial sum.

    The kernel reads a row for each token, not the table. `rows`: the axis of the table's rows.
    """

    kind: ClassVar[str] = "embedding"
    rows: ClassVar[str] = "vocab"
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
        tracer.emit(grad.name, self._backward(), reads, grad, template=WEIGHT_GRADIENT)
        yield 1, grad

    def _backward(self) -> Operator:
        return EmbeddingGradient()

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        tokens, table = inputs
        local = tokens - place.starts.get(self.rows, 0)
        here = (local >= 0) & (local < len(table))
        shown = here.reshape(*here.shape, *(1,) * (table.ndim - 1))
        return [np.where(shown, table[np.where(here, local, 0)], 0)]


@dataclass(frozen=True)
class EmbeddingGradient(Operator):
    """The backward of `Embedding`: adds each token's gradient to its row, where this rank holds the row.

    The kernel writes the whole gradient of the table, zeros first (torch: `embedding_dense_backward`). `rows`: as in
    `Embedding`.
    """

    kind: ClassVar[str] = "embedding"
    rows: ClassVar[str] = "vocab"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        tokens, dy = inputs
        rows = place.lengths[self.rows]
        local = tokens - place.starts.get(self.rows, 0)
        here = (local >= 0) & (local < rows)
        grad = np.zeros((rows, *dy.shape[tokens.ndim :]), dy.dtype)
        np.add.at(grad, local[here], dy[here])
        return [grad]


@dataclass(frozen=True)
class LayerEmbedding(Embedding):
    """Rows of a table with values for each layer, which has tokens of its own: (batch, seq, layers, width)."""

    rows: ClassVar[str] = "layer_vocab"

    def _backward(self) -> Operator:
        return LayerEmbeddingGradient()


@dataclass(frozen=True)
class LayerEmbeddingGradient(EmbeddingGradient):
    """The backward of `LayerEmbedding`: the gradient of its table."""

    rows: ClassVar[str] = "layer_vocab"


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
    """The backward of `PositionEmbedding`: the gradient of its table: this part's rows, zeros elsewhere."""

    kind: ClassVar[str] = "embedding"
    linear: ClassVar[bool] = True

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy = inputs[0]
        grad = np.zeros((place.lengths["positions"], dy.shape[-1]), dy.dtype)
        grad[place.positions()] = dy
        return [grad]


@dataclass(frozen=True)
class LayerViews(Operator):
    """A tensor (batch, seq, layers, width) as one view (batch, seq, width) for each layer. No kernel runs."""

    kind: ClassVar[str] = "copy"
    views: ClassVar[Sequence[int]] = range(sys.maxsize)

    def reads(self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]) -> tuple["Tensor", ...]:
        return ()

    def writes(self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]) -> tuple["Tensor", ...]:
        return ()

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        yield from joined_gradient(tracer, op, StackLayers(), grads)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return list(np.moveaxis(inputs[0], 2, 0))


@dataclass(frozen=True)
class StackLayers(Operator):
    """The backward of `LayerViews`: the gradients (batch, seq, width) of the layers, stacked to (batch, seq, layers,
    width).
    """

    kind: ClassVar[str] = "copy"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [np.stack(inputs, axis=2)]
