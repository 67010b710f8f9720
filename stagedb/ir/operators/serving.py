"""What a step of serving does besides its forward: it fills a cache, and chooses the next token of each request."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.operators._base import KEYS, Array, Labels, Operator, RankPlace, over

if TYPE_CHECKING:
    from stagedb.ir.tensors import Tensor


@dataclass(frozen=True)
class CacheAppend(Operator):
    """Writes what new positions add (keys, values, latents) behind that of earlier ones, in a cache that stays.

    The kernel reads and writes the new positions alone. Its result, the cache, has all of them.
    """

    kind: ClassVar[str] = "cache"

    def labels(
        self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]
    ) -> tuple[tuple[Labels, ...], tuple[Labels, ...]]:
        return tuple(over(KEYS, t.axes) for t in inputs), tuple(t.axes for t in outputs)

    def reads(self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]) -> tuple["Tensor", ...]:
        return inputs

    def writes(self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]) -> tuple["Tensor", ...]:
        return tuple(replace(new, dtype=cache.dtype) for new, cache in zip(inputs, outputs, strict=True))

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return inputs


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
