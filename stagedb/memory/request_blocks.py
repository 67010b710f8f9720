"""How many requests fit: the share of an accelerator that an engine takes, what of it is for caches, and its blocks."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

ShareOf = Literal["total", "weights", "free"]
"""The whole that a share of memory divides, and what the share holds.

total: the accelerator; weights, activations and the cache are in the share (vLLM's gpu_memory_utilization). weights:
the memory before weights are loaded; weights and the cache are in the share (SGLang's mem_fraction_static). free: the
memory next to weights and activations; the cache alone is in the share (TensorRT-LLM's free_gpu_memory_fraction).
"""


@dataclass(frozen=True)
class MemoryShare:
    """The memory of an accelerator as an engine divides it, in bytes.

    capacity: the whole. share: the part that the engine takes; `of` names its whole. weights: those of a rank.
    held: what else the engine holds next to the cache, by what holds it: activations, sampling, libraries.
    reserve: what is gone before weights are loaded, by what holds it.
    given: bytes for the cache, if they are given outright. most: those that it takes at most.
    """

    capacity: int
    share: Fraction
    of: ShareOf
    weights: int
    held: Mapping[str, int] = field(default_factory=dict)
    reserve: Mapping[str, int] = field(default_factory=dict)
    given: int | None = None
    most: int | None = None

    @property
    def taken(self) -> int:
        """Bytes that the engine takes: rounded up, as vLLM does, so that a share of 1 is the whole."""
        before = self.capacity - sum(self.reserve.values())
        if self.of == "total":
            return math.ceil(self.capacity * self.share)
        if self.of == "weights":
            return math.floor(before * self.share)
        return math.floor((before - self.weights - sum(self.held.values())) * self.share)

    @property
    def cache(self) -> int:
        """Bytes for caches. Negative if the weights and what else is held do not fit."""
        if self.given is not None:
            return self.given
        held = sum(self.held.values())
        left = self.taken - {"total": self.weights + held, "weights": self.weights, "free": 0}[self.of]
        return left if self.most is None else min(left, self.most)


@dataclass(frozen=True)
class RequestFit:
    """Requests that the cache of a rank has room for.

    cache: bytes for caches. block_tokens: tokens of a block; where ranks of cp share caches,
    those of one block on each of them. block: its bytes in all layers of the rank. tokens: those
    of a request. request: the bytes of its blocks, the last one whole. even: every layer keeps all tokens of a request,
    so that the blocks of all requests are alike. limit: the most blocks, if an engine has a limit. shared: tokens of a
    prefix that all requests have, in whole blocks, which are there once. prefix: the bytes of these blocks.
    """

    cache: int
    block_tokens: int
    block: int
    tokens: int
    request: int
    even: bool = True
    limit: int | None = None
    shared: int = 0
    prefix: int = 0

    @property
    def blocks(self) -> int:
        """Whole blocks that the cache has room for."""
        fitting = max(self.cache, 0) // self.block
        return fitting if self.limit is None else min(fitting, self.limit)

    @property
    def each(self) -> int:
        """Number of blocks that one request takes, those of a shared prefix included."""
        return -(-self.tokens // self.block_tokens)

    @property
    def _once(self) -> int:
        """Number of blocks of the shared prefix."""
        return self.shared // self.block_tokens

    @property
    def requests(self) -> int:
        """Number of requests whose caches fit at once."""
        if self.even:
            return max(self.blocks - self._once, 0) // (self.each - self._once)
        return max(self.cache - self.prefix, 0) // (self.request - self.prefix)

    @property
    def missing(self) -> int:
        """Bytes that the cache lacks for one request more."""
        if self.limit is not None and self.even and self.limit == self.blocks:
            return (self._once + (self.requests + 1) * (self.each - self._once) - self.limit) * self.block
        return self.prefix + (self.requests + 1) * (self.request - self.prefix) - self.cache


def sampling_bytes(requests: int, vocabulary: int, each: int) -> int:
    """Bytes of the tensors from which an engine draws the tokens of all requests.

    each: bytes of an entry of the vocabulary, of a request: logits as they are made and in fp32, probabilities, noise.
    """
    return requests * vocabulary * each


def tightest(fits: Mapping[int, RequestFit]) -> int:
    """The rank class with room for the fewest requests, which bounds all others. fits: by number of the class."""
    return min(fits, key=lambda number: (fits[number].requests, fits[number].cache))
