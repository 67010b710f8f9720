"""The gated linear recurrence of Griffin (De et al. 2024, RG-LRU): each value has a decay that depends on the token.

Axes: (batch, seq, recurrence_blocks, recurrence_values). Gates are made by a matmul for each block. The state is one
number for each value.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.facts import Tag
from stagedb.ir.operators._base import Array, Operator, RankPlace, fused_gradient
from stagedb.ir.operators.activations import ACTIVATIONS
from stagedb.ir.operators.state_space import KeepsState, ShortConvolution

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer

STEEP = 8.0
"""The factor of the exponent of a decay."""

STEEPEST = 1000.0
"""The bound of the slope of the root of what a decay leaves."""


@dataclass(frozen=True)
class BeforeConvolution(ShortConvolution):
    """A short convolution in serving. Requests keep the values before the next token: one fewer than it has taps."""

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        new = inputs[0]
        if self.keeps and len(inputs) > 2 and inputs[-1].ndim == new.ndim:
            # The oldest of as many as there are taps is behind no new token.
            inputs = [*inputs[:-1], np.concatenate([np.zeros_like(new[:, :1]), inputs[-1]], axis=1)]
        made = super().run(place, inputs)
        return [made[0], made[1][:, 1:]] if self.keeps else made


@dataclass(frozen=True)
class GatedRecurrence(KeepsState):
    """`h = a·h + √(1 - a²)·σ(i)·x` with `a = exp(-8·σ(r)·softplus(Λ))`. The first token of a sequence has no root.

    Operands: x, i and r (batch, seq, blocks, values), and Λ (blocks, values). The result h is the states, which the
    backward reads. One kernel without a matmul. keeps: requests keep the last state (batch, blocks, values).
    """

    keeps: bool = False

    kind: ClassVar[str] = "scan"
    tags: ClassVar[frozenset[Tag]] = frozenset({Tag.SAVED})

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        yield from fused_gradient(tracer, op, GatedRecurrenceGradient(), grads[:1], op.inputs)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        first = len(inputs) == 4
        gates = _Gates.of(inputs, first)
        added, made = gates.open * gates.root * inputs[0], np.zeros_like(inputs[0])
        state = np.zeros_like(made[:, 0]) if first else inputs[4]
        for at in range(made.shape[1]):
            state = gates.decay[:, at] * state + added[:, at]
            made[:, at] = state
        return [made, state] if self.keeps else [made]


@dataclass(frozen=True)
class _Gates:
    """open: σ(i). passes: σ(r). decay: a. root: √(1 - a²), and 1 of a first token."""

    open: Array
    passes: Array
    decay: Array
    root: Array

    @classmethod
    def of(cls, inputs: list[Array], first: bool) -> "_Gates":
        """first: whether the sequence begins with these tokens."""
        sigmoid = ACTIVATIONS["sigmoid"][0]
        passes = sigmoid(inputs[2])
        decay = np.exp(-STEEP * passes * np.logaddexp(0, inputs[3]))
        root = np.sqrt(1 - decay**2)
        if first:
            root[:, 0] = 1
        return cls(sigmoid(inputs[1]), passes, decay, root)


@dataclass(frozen=True)
class GatedRecurrenceGradient(GatedRecurrence):
    """The backward of `GatedRecurrence`: the gradients of all operands, from the states; gates are made again."""

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, own, states = inputs[0], inputs[1:5], inputs[5]
        x, gates = own[0], _Gates.of(own, True)
        before = np.concatenate([np.zeros_like(states[:, :1]), states[:, :-1]], axis=1)
        reached = np.zeros_like(dy)
        later = np.zeros_like(dy[:, 0])
        for at in reversed(range(dy.shape[1])):
            reached[:, at] = later = dy[:, at] + later
            later = later * gates.decay[:, at]
        d_root = reached * x * gates.open
        d_root[:, 0] = 0
        slope = 1 / np.sqrt(np.maximum(4 * (1 - gates.decay**2), STEEPEST**-2))
        d_exponent = reached * before * gates.decay - 2 * gates.decay**2 * d_root * slope
        d_passes = -STEEP * d_exponent * np.logaddexp(0, own[3])
        d_rate = (-STEEP * d_exponent * gates.passes).sum(axis=(0, 1)) * ACTIVATIONS["softplus"][1](own[3])
        d_open = reached * x * gates.root * gates.open * (1 - gates.open)
        return [
            reached * gates.open * gates.root,
            d_open,
            d_passes * gates.passes * (1 - gates.passes),
            d_rate,
        ]


OPERATORS: tuple[type[Operator], ...] = (BeforeConvolution, GatedRecurrence, GatedRecurrenceGradient)
"""The operators of this module."""
