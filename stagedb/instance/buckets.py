"""Buckets of gradients: the parameters of a stage dealt to collectives, as the graph's bucketing rules say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from stagedb.errors import StagedbError
from stagedb.instance.layout import IssueOrder, Stage

MIB = 1 << 20
DDP_FIRST, DDP_LATER = 1 * MIB, 25 * MIB
"""Bytes from which torch's DistributedDataParallel closes its first and its later buckets."""


@dataclass(frozen=True)
class Gradient:
    """An op whose result is a weight's gradient or a share of it: where in its template it is issued."""

    op: str
    block: str
    order: int


@dataclass(frozen=True)
class Weight:
    """A weight under a plan: its gradient's bytes on one rank, the ops that make it, the buckets that it passes."""

    name: str
    block: str
    order: int
    bytes: int
    gradients: tuple[Gradient, ...]
    buckets: tuple[str, ...]


@dataclass(frozen=True)
class BucketOp:
    """The symbolic op that is multiplied to one collective a bucket."""

    name: str
    rule: str
    order: int
    in_step: bool


@dataclass(frozen=True)
class Member:
    """A weight at a position, with the position and name of each op that makes its gradient.

    `turn` counts the buckets that the gradient has passed before.
    """

    position: int
    weight: str
    turn: int
    gradients: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Bucket:
    """One collective of a stage. `base` is the issue number of the op after which it comes, `slot` its place there."""

    op: str
    index: int
    bytes: int
    position: int
    base: int
    members: tuple[Member, ...]
    slot: int = 0


def deal(rule: str, sizes: Sequence[int]) -> list[range]:
    """Deal weights, in order of registration, to buckets; each is a range of indexes, walked from the last weight back.

    `ddp`: a bucket is closed once it holds 1 MiB (the first) or 25 MiB (the others). `one`: a single bucket.
    """
    if not sizes:
        return []
    if rule == "one":
        return [range(len(sizes) - 1, -1, -1)]
    if rule != "ddp":
        raise StagedbError(f"the graph buckets gradients by rule {rule!r}, which this version of stagedb does not know")
    buckets: list[range] = []
    first, held = len(sizes) - 1, 0
    for index in range(len(sizes) - 1, -1, -1):
        held += sizes[index]
        if held >= (DDP_LATER if buckets else DDP_FIRST):
            buckets.append(range(first, index - 1, -1))
            first, held = index - 1, 0
    if first >= 0:
        buckets.append(range(first, -1, -1))
    return buckets


def fill(
    stage: Stage, weights: Mapping[str, Sequence[Weight]], ops: Sequence[BucketOp], orders: int
) -> tuple[tuple[Bucket, ...], IssueOrder]:
    """The buckets of a stage, and the issue order that has room for them.

    weights: by block, in order of registration. orders: one more than the largest `SymOp.order`.
    A bucket of a backward is issued right after the last op that makes one of its gradients, never before the bucket
    that was closed before it; a bucket of a step comes before everything else.
    """
    registered = [(place.position, weight) for place in stage.places for weight in weights.get(place.block, ())]
    order = IssueOrder(len(stage.places), orders, 1)
    buckets = [bucket for op in ops for bucket in _fill_one(stage, registered, op, order)]
    depths = {op: depth for _, weight in registered for depth, op in enumerate(weight.buckets)}
    rank = {op.name: (depths.get(op.name, 0), op.order, op.name) for op in ops}
    buckets.sort(key=lambda bucket: (bucket.base, rank[bucket.op], bucket.index))
    ties = [list(tied) for _, tied in groupby(buckets, key=lambda bucket: bucket.base)]
    slots = max([2, *(1 + len(tied) for tied in ties)])
    placed = tuple(
        Bucket(each.op, each.index, each.bytes, each.position, each.base * slots, each.members, slot)
        for tied in ties
        for slot, each in enumerate(tied, start=1)
    )
    return placed, IssueOrder(len(stage.places), orders, slots)


def _fill_one(stage: Stage, registered: Sequence[tuple[int, Weight]], op: BucketOp, order: IssueOrder) -> list[Bucket]:
    standing = stage.standing()
    own = [(position, weight) for position, weight in registered if op.name in weight.buckets]
    buckets: list[Bucket] = []
    after = (0, 0)
    for index, chosen in enumerate(deal(op.rule, [weight.bytes for _, weight in own])):
        members = tuple(_member(op, *own[at], standing) for at in chosen)
        if op.in_step:
            after = (op.order, 0)
        else:
            issued = [
                (order.downward(place) + gradient.order, place)
                for at in chosen
                for gradient in own[at][1].gradients
                for place in _places_of(gradient, *own[at], standing)
            ]
            after = max([after, *issued], key=lambda each: each[0])
        total = sum(own[at][1].bytes for at in chosen)
        buckets.append(Bucket(op.name, index, total, after[1], after[0], members))
    return buckets


def _member(op: BucketOp, position: int, weight: Weight, standing: Mapping[str, int]) -> Member:
    places = tuple(
        (place, gradient.op)
        for gradient in weight.gradients
        for place in _places_of(gradient, position, weight, standing)
    )
    return Member(position, weight.name, weight.buckets.index(op.name), places)


def _places_of(gradient: Gradient, position: int, weight: Weight, standing: Mapping[str, int]) -> tuple[int, ...]:
    """Where the op that makes a gradient stands: beside its weight, or in a block of its own (a tied weight's head)."""
    if gradient.block == weight.block:
        return (position,)
    return (standing[gradient.block],) if gradient.block in standing else ()
