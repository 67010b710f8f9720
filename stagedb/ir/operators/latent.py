"""Latent attention: the parts of its latents, and its keys and values (DeepSeek-AI 2024)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.expressions import Expression, number
from stagedb.ir.facts import KEYS
from stagedb.ir.operators._base import Array, Labels, Operator, RankPlace, Size, arriving, joined_gradient, over
from stagedb.ir.operators.attention import Attention
from stagedb.workflows.training import INPUT_GRADIENT

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer


@dataclass(frozen=True)
class SplitLast(Operator):
    """The last axis in two parts, the axes `first` and `second`: one copy each."""

    first: str
    second: str

    kind: ClassVar[str] = "copy"

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        yield from joined_gradient(tracer, op, JoinLast(), grads)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        at = place.sizes[self.first]
        return [inputs[0][..., :at], inputs[0][..., at:]]


@dataclass(frozen=True)
class SplitLastViews(SplitLast):
    """The last axis in two parts that are views of the whole."""

    views: ClassVar[tuple[int, ...]] = (0, 1)


@dataclass(frozen=True)
class JoinLast(Operator):
    """Two tensors joined along their last axes."""

    kind: ClassVar[str] = "copy"

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        made = [tracer.gradient(x, f"{op.name}.input_gradient.{i}") for i, x in enumerate(op.inputs)]
        split = SplitLast(*(x.axes[-1] for x in op.inputs))
        tracer.emit(f"{op.name}.input_gradient", split, (arriving(grads),), *made, template=INPUT_GRADIENT)
        yield from enumerate(made)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [np.concatenate(inputs, axis=-1)]


@dataclass(frozen=True)
class LatentKeys(Operator):
    """Keys and values of latent attention: from (batch, kseq, heads, nope + value) and the heads' shared part of keys.

    Each head's key is its own part and the shared one, (batch, seq, rope). They are those of all positions: a cache
    has the latents that the first operand is made from, and the shared parts.
    """

    kind: ClassVar[str] = "copy"

    def labels(
        self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]
    ) -> tuple[tuple[Labels, ...], tuple[Labels, ...]]:
        return tuple(over(KEYS, t.axes) for t in inputs), tuple(t.axes for t in outputs)

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        made = [tracer.gradient(x, f"{op.name}.input_gradient.{i}") for i, x in enumerate(op.inputs)]
        present = tuple(each for each in grads if each is not None)
        tracer.emit(f"{op.name}.input_gradient", LatentKeysGradient(), present, *made, template=INPUT_GRADIENT)
        yield from enumerate(made)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        made, shared = inputs
        at = made.shape[-1] - place.sizes["value_dim"]
        wide = np.broadcast_to(shared[:, :, None, :], (*made.shape[:3], shared.shape[-1]))
        return [np.concatenate([made[..., :at], wide], axis=-1), made[..., at:]]


@dataclass(frozen=True)
class LatentKeysViews(LatentKeys):
    """Keys, and values that are a view of what they are made from."""

    views: ClassVar[tuple[int, ...]] = (1,)


@dataclass(frozen=True)
class PartViews(Operator):
    """Two parts of a tensor along an axis, the first of the size of the axis `first`. No kernel runs.

    place: that of the axis among those of the tensor.
    """

    place: int
    first: str

    kind: ClassVar[str] = "copy"
    views: ClassVar[tuple[int, ...]] = (0, 1)
    inside: ClassVar[bool] = True

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        first, second = np.split(inputs[0], [place.sizes[self.first]], axis=self.place)
        return [first, second]


@dataclass(frozen=True)
class LatentAttention(Attention):
    """Attention whose keys are latents with the shared part behind them, and whose values are the latents alone.

    Operands: queries (batch, seq, heads, head) and the one key (batch, seq, head) of all heads, which is read once. The
    result has the size of a latent (`value`) a head: FLOPs `2·b·s·k·a·(head + value)`.
    """

    def labels(
        self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]
    ) -> tuple[tuple[Labels, ...], tuple[Labels, ...]]:
        query, keys, *rest = (t.axes for t in inputs)
        return (query, over(KEYS, keys), *rest), tuple(t.axes for t in outputs)

    def dims(self, size: Size) -> tuple[Expression, ...]:
        batch, heads, queries = (size(axis) for axis in ("batch", "heads", "seq"))
        return batch, heads, number(1), queries, self._keys_seen(size), size(self.head), size(self.value)

    def _operands(self, inputs: Sequence[Array]) -> tuple[Array, Array, Array]:
        query, keys = inputs[:2]
        keys = keys[:, :, None, :]
        return query, keys, keys  # `run` cuts the shared part off

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        context, lse = super().run(place, inputs)
        return [context[..., : place.sizes[self.value]], lse]


@dataclass(frozen=True)
class LatentKeysGradient(Operator):
    """The backward of `LatentKeys`: the gradients of the heads' own parts, and of the shared one, summed over heads."""

    kind: ClassVar[str] = "reduce"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dk, dv = inputs
        at = dk.shape[-1] - place.sizes["rope_dim"]
        return [np.concatenate([dk[..., :at], dv], axis=-1), dk[..., at:].sum(axis=2)]
