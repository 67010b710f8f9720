"""Attention of ranks that share the cache of each request: every rank has the keys of every cp-th position.

Position p is on rank p modulo cp, as engines interleave the tokens of a cache (vLLM's decode context parallelism with
an interleave of 1). All ranks have all queries. Each makes the context of its own keys, with their log-sum-exp; the
log-sum-exps are gathered, each context is scaled by what its keys have of all exponentials, and the sum over ranks is
the context of all keys (vLLM's `cp_lse_ag_out_ar`; the scaling is its `correct_attn_out`).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stagedb.ir.expressions import Expression, ceiling, number, symbol
from stagedb.ir.operators._base import Array, Labels, Operator, RankPlace

if TYPE_CHECKING:
    from stagedb.ir.tensors import Tensor

EVERY_PART, ADDED = "every_key_part", "added"
"""The axis of the parts of a sequence's keys where a rank has those of all ranks of cp, and that of the new positions
that are on a rank."""


def dealt(last: Expression, positions: Expression) -> Expression:
    """How many of the last positions of a sequence a rank of cp has.

    last: the number of these positions. positions: of the sequence. Expressions have the rank on cp as `cp_rank`,
    counted from 1; the first one has the most.
    """
    return before(positions) - before(positions - last)


def before(position: Expression) -> Expression:
    """How many positions before one a rank of cp has. position: counted from 0."""
    if position == number(0):
        return number(0)
    return ceiling((position + 1 - symbol("cp_rank")) / symbol("cp"))


def places(place: RankPlace, positions: Array) -> Array:
    """Which of some positions are on a rank, as bools. positions: counted from 0."""
    return np.asarray(positions % place.degrees["cp"] == place.member["cp"])


def dealt_positions(place: RankPlace, keys: int) -> Array:
    """The positions of a rank's keys, in order. keys: how many it has."""
    return np.asarray(place.member["cp"] + place.degrees["cp"] * np.arange(keys))


@dataclass(frozen=True)
class ScaleByParts(Operator):
    """A rank's context, scaled by what its keys have of the exponentials of all keys, so that ranks add them up.

    Operands: the context of the rank's keys (key_parts, batch, seq, heads, value), and the log-sum-exps of the keys of
    all ranks (every_key_part, batch, heads, seq).
    """

    def labels(
        self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]
    ) -> tuple[tuple[Labels, ...], tuple[Labels, ...]]:
        context, sums = (t.axes for t in inputs)
        return (context, (EVERY_PART, *sums[1:])), tuple(t.axes for t in outputs)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        context, sums = inputs
        share = np.exp(sums[place.member["cp"]] - _together(sums))
        return [context[0] * share.transpose(0, 2, 1)[..., None]]


@dataclass(frozen=True)
class SumOfParts(Operator):
    """The log-sum-exp of all keys from those of the keys of each rank: (every_key_part, batch, heads, seq)."""

    def labels(
        self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]
    ) -> tuple[tuple[Labels, ...], tuple[Labels, ...]]:
        return tuple((EVERY_PART, *t.axes[1:]) for t in inputs), tuple(t.axes for t in outputs)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [_together(inputs[0])]


def _together(sums: Array) -> Array:
    """The log-sum-exp over the first axis."""
    top = sums.max(axis=0)
    return np.asarray(top + np.log(np.exp(sums - top).sum(axis=0)))
