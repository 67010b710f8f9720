"""Bucket policies: how a framework distributes the weights of a stage, or their gradients, over collectives.

A graph stores a policy by its name, and `POLICIES` finds it again. A new policy is an object here; a framework uses it
by naming it in its `Bucketing`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stagedb.errors import StagedbError
from stagedb.files import shown

MIB = 1 << 20
DDP_FIRST, DDP_LATER = 1 * MIB, 25 * MIB
"""Bytes at which torch's DistributedDataParallel closes its first and its later buckets."""

ALIGNED, BLOCK = 64, 128
"""Elements: Megatron's parameters begin at a multiple of `ALIGNED` in a buffer, whose size is a multiple of `BLOCK`."""

Units = Sequence[int | None]
Dealt = list[Sequence[int]]
Rule = Callable[[Sequence[int], Units], Dealt]


@dataclass(frozen=True)
class BucketPolicy:
    """How weights are distributed over buckets, and what a bucket is in memory.

    name: the word that graphs store.
    rule: assigns weights, by bytes and unit in order of registration, to buckets of indexes.
    by_unit: a bucket of gradients is due at the end of its unit's backward; else right after the last of its gradients.
    at_end: a bucket is due after the stage's whole backward and its messages, in the order of the units' forwards; what
        is outside layers comes first.
    copied: the framework copies gradients into separate buckets instead of computing them there.
    extent: elements of the padded buffer, by its weights' sizes and the number of shards; None: a bucket is as
        large as its weights.
    """

    name: str
    rule: Rule
    by_unit: bool = False
    at_end: bool = False
    copied: bool = False
    extent: Callable[[Sequence[int], int], int] | None = None

    def deal(self, sizes: Sequence[int], units: Units | None = None) -> Dealt:
        """Assign weights, given in order of registration, to buckets of indexes.

        sizes: the bytes of each weight. units: the position of each weight's layer, None outside layers.
        """
        return self.rule(sizes, units or [None] * len(sizes)) if sizes else []


def _one_bucket(sizes: Sequence[int], units: Units) -> Dealt:
    return [range(len(sizes) - 1, -1, -1)]


def _by_size(first: int, later: int) -> Rule:
    """From the last weight back: close the first bucket at `first` bytes, the others at `later` bytes."""

    def rule(sizes: Sequence[int], units: Units) -> Dealt:
        buckets: Dealt = []
        begun, held = len(sizes) - 1, 0
        for index in range(len(sizes) - 1, -1, -1):
            held += sizes[index]
            if held >= (later if buckets else first):
                buckets.append(range(begun, index - 1, -1))
                begun, held = index - 1, 0
        if begun >= 0:
            buckets.append(range(begun, -1, -1))
        return buckets

    return rule


def _layers(sizes: Sequence[int], units: Units) -> Dealt:
    """A bucket for each layer, in the order in which a backward reaches the layers."""
    found: dict[int, list[int]] = {}
    for index, unit in enumerate(units):
        if unit is not None:
            found.setdefault(unit, []).append(index)
    return [found[unit] for unit in sorted(found, reverse=True)]


def _root(sizes: Sequence[int], units: Units) -> Dealt:
    """A bucket for the weights outside layers (FSDP's root)."""
    root = [index for index, unit in enumerate(units) if unit is None]
    return [root] if root else []


def _units(sizes: Sequence[int], units: Units) -> Dealt:
    """A bucket for each layer, and one for the weights outside layers."""
    return [*_layers(sizes, units), *_root(sizes, units)]


def _single(sizes: Sequence[int], units: Units) -> Dealt:
    return [[index] for indexes in _units(sizes, units) for index in indexes]


def _padded(elements: Sequence[int], parts: int) -> int:
    """Elements of Megatron's buffer: each parameter is aligned, and the whole divides into equal parts."""
    begun = sum(-(-each // ALIGNED) * ALIGNED for each in elements)
    unit = math.lcm(parts, BLOCK)
    return -(-begun // unit) * unit


DDP = BucketPolicy("ddp", _by_size(DDP_FIRST, DDP_LATER), copied=True)
"""torch's DistributedDataParallel with `bucket_cap_mb=25` and `gradient_as_bucket_view=False`."""

ONE = BucketPolicy("one", _one_bucket)
"""A single bucket: Megatron's DistributedDataParallel without `--overlap-grad-reduce`."""

BUFFER = BucketPolicy("buffer", _one_bucket, extent=_padded)
"""A single padded buffer whose equal parts ranks share: Megatron's `--use-distributed-optimizer`."""

NORM = BucketPolicy("norm.total", _one_bucket, extent=lambda elements, parts: 1)
"""A single number for all weights of a stage: the norm of their gradients."""

UNIT = BucketPolicy("unit", _units, by_unit=True)
"""A bucket for each layer and one for the rest: `fully_shard` on each layer and on the model."""

LAYERS = BucketPolicy("layers", _layers)
"""A bucket for each layer. Weights outside layers have none, because `fully_shard` keeps its root gathered."""

EACH = BucketPolicy("each", _single, by_unit=True)
"""A bucket for each weight: DTensors are reduced one by one."""

ROOT = BucketPolicy("root", _root)
"""A bucket for the weights outside layers, which `fully_shard` of the model leaves for it."""

UNIT_AT_END = BucketPolicy("unit.end", _units, by_unit=True, at_end=True)
"""The buckets of `unit`, reduced after the last backward: `torch.distributed.pipelining` calls `post_backward` of all
units then, the model's first."""

EACH_AT_END = BucketPolicy("each.end", _single, by_unit=True, at_end=True)
"""The buckets of `each`, reduced right before those of `unit.end`."""

POLICIES: Mapping[str, BucketPolicy] = {
    policy.name: policy for policy in (DDP, ONE, BUFFER, NORM, UNIT, LAYERS, EACH, ROOT, UNIT_AT_END, EACH_AT_END)
}


def bucket_policy(name: str | None) -> BucketPolicy:
    """The policy that a graph stores by this name. Raises StagedbError for one that only newer versions know."""
    policy = POLICIES.get(name or "")
    if policy is None:
        raise StagedbError(
            f"the graph buckets weights by rule {shown(name)}, which this version of stagedb does not know"
        )
    return policy


@dataclass(frozen=True)
class Bucketing:
    """How a framework forms buckets, for each use of them.

    gradients: for whole gradients, which data-parallel ranks all-reduce. optimizer: for gradients that are scattered to
    shards of the optimizer, and the parameters that it has updated. units: for sharded gradients and parameters.
    regathered: for sharded parameters that the backward gathers again.
    """

    gradients: BucketPolicy
    optimizer: BucketPolicy = BUFFER
    units: BucketPolicy = UNIT
    regathered: BucketPolicy = LAYERS
