"""What a step of serving does besides its forward: it fills a cache, and chooses the next token of each request."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.facts import KEYS
from stagedb.ir.operators._base import QUERIES, Array, Labels, Operator, RankPlace, over
from stagedb.ir.operators.scored_pairs import ADDED, places

if TYPE_CHECKING:
    from stagedb.ir.tensors import Tensor


@dataclass(frozen=True)
class CacheAppend(Operator):
    """Writes what new positions add (keys, values, latents) behind that of earlier ones, in a cache that stays.

    The kernel reads and writes the new positions alone. Its result, the cache, has all of them. dealt: ranks of cp
    share the cache, so that each keeps its own of the new positions (`scored_pairs`).
    """

    dealt: bool = False

    kind: ClassVar[str] = "cache"

    def deals_keys(self) -> bool:
        return self.dealt

    def labels(
        self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]
    ) -> tuple[tuple[Labels, ...], tuple[Labels, ...]]:
        read = tuple(t.axes if self.dealt else over(KEYS, t.axes) for t in inputs)
        return read, tuple(t.axes for t in outputs)

    def reads(self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]) -> tuple["Tensor", ...]:
        return tuple(self._own(each) for each in inputs)

    def writes(self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]) -> tuple["Tensor", ...]:
        return tuple(replace(self._own(new), dtype=cache.dtype) for new, cache in zip(inputs, outputs, strict=True))

    def _own(self, new: "Tensor") -> "Tensor":
        """What the kernel passes of an operand: all of the new positions, or those of this rank."""
        if not self.dealt:
            return new
        return replace(new, axes=tuple(ADDED if axis == QUERIES else axis for axis in new.axes))

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        if not self.dealt:
            return inputs
        return [new[:, places(place, place.before + np.arange(new.shape[1]))] for new in inputs]


@dataclass(frozen=True)
class LastTokens(Operator):
    """The rows of the last token of each request: those that logits are made from."""

    kind: ClassVar[str] = "elementwise"

    def reads(self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]) -> tuple["Tensor", ...]:
        return outputs

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [inputs[0][:, -1:]]


@dataclass(frozen=True)
class NextTokens(Operator):
    """The most probable token after the last one of each request (greedy sampling): the place of the largest logit."""

    kind: ClassVar[str] = "elementwise"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [np.argmax(inputs[0], axis=-1)]


@dataclass(frozen=True)
class DraftedTokens(Operator):
    """The tokens one place further on: all but the first one of each request, and a drafted one behind its last one."""

    kind: ClassVar[str] = "elementwise"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        tokens, drafted = inputs
        return [np.concatenate((tokens[:, 1:], drafted), axis=1)]
