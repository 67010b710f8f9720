"""Queries of a token's experts as heads of attention, and the results of heads for these experts (JetMoe).

Each expert that a token chooses makes a query for each K/V head, so that a token has `choices · query_heads` queries:
(batch, seq, choices, query_heads, head_dim). Attention has those of a K/V head next to each other:
(batch, seq, heads, head_dim), where head `h · choices + c` is the query of choice c for K/V head h.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.operators._base import Array, Operator, RankPlace, joined_gradient

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer

Gradients = Iterator[tuple[int, "Tensor"]]


@dataclass(frozen=True)
class ChoicesToHeads(Operator):
    """Queries by choice, (batch, seq, choices, query_heads, head_dim), to (batch, seq, heads, head_dim)."""

    kind: ClassVar[str] = "copy"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield from joined_gradient(tracer, op, HeadsToChoices(), grads)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        (x,) = inputs
        return [np.swapaxes(x, 2, 3).reshape(*x.shape[:2], -1, x.shape[-1])]


@dataclass(frozen=True)
class HeadsToChoices(Operator):
    """Results of heads, (batch, seq, heads, head_dim), to (batch, seq, choices, query_heads, head_dim)."""

    kind: ClassVar[str] = "copy"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield from joined_gradient(tracer, op, ChoicesToHeads(), grads)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        (x,) = inputs
        apart = x.reshape(*x.shape[:2], -1, place.sizes["choices"], x.shape[-1])
        return [np.swapaxes(apart, 2, 3)]


OPERATORS: tuple[type[Operator], ...] = (ChoicesToHeads, HeadsToChoices)
"""The operators of this module."""
