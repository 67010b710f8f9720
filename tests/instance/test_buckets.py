"""Buckets as torch's DistributedDataParallel fills them, and where their collectives are issued."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagedb.errors import StagedbError
from stagedb.instance.buckets import DDP_FIRST, DDP_LATER, MIB, BucketOp, Gradient, Weight, deal, fill
from stagedb.instance.layout import Block, lay_out

sizes_of_weights = st.lists(st.integers(1, 40 * MIB), max_size=60)


@given(sizes_of_weights)
def test_ddp_closes_buckets_at_its_caps(sizes: list[int]) -> None:
    buckets = deal("ddp", sizes)
    assert [index for bucket in buckets for index in bucket] == list(range(len(sizes) - 1, -1, -1))
    for number, bucket in enumerate(buckets):
        held, cap = [sizes[index] for index in bucket], DDP_LATER if number else DDP_FIRST
        assert sum(held[:-1]) < cap
        assert sum(held) >= cap or number == len(buckets) - 1


@given(sizes_of_weights)
def test_one_bucket_holds_everything(sizes: list[int]) -> None:
    assert [sorted(bucket) for bucket in deal("one", sizes)] == ([list(range(len(sizes)))] if sizes else [])


def test_ddp_on_the_weights_of_a_small_llama() -> None:
    """Two layers of hidden 64 with a vocabulary of 16,384 in bf16: the head alone, then all the rest."""
    layer = [128, 8192, 4096, 4096, 8192, 128, 12288, 12288, 12288]
    sizes = [2 * MIB, *layer, *layer, 128, 2 * MIB]
    buckets = deal("ddp", sizes)
    assert [sum(sizes[index] for index in bucket) for bucket in buckets] == [2 * MIB, 2 * MIB + 2 * sum(layer) + 128]


def test_an_unknown_rule_is_a_failure() -> None:
    with pytest.raises(StagedbError, match="rule 'zigzag'"):
        deal("zigzag", [1])


def weight(name: str, order: int, size: int, made_at: int, buckets: tuple[str, ...] = ("dp",)) -> Weight:
    """A weight of block `layer` whose gradient op is issued as number `made_at`."""
    return Weight(name, "layer", order, size, (Gradient(f"{name}.grad", "layer", made_at),), buckets)


(STAGE,) = lay_out((Block("embedding", None), Block("layer", 2)), (2,))
DP = BucketOp("dp", "ddp", 0, in_step=False)


def test_a_bucket_comes_right_after_the_last_gradient_in_it() -> None:
    """Layer 1 is at position 2: the backward reaches it first. Its second weight fills the first bucket alone."""
    rows = {"layer": (weight("a", 0, 10, made_at=7), weight("b", 1, 2 * MIB, made_at=4))}
    buckets, order = fill(STAGE, rows, (DP,), orders=9)
    assert order.slots == 2
    assert [(bucket.bytes, bucket.position, bucket.base + bucket.slot) for bucket in buckets] == [
        (2 * MIB, 2, order.downward(2) + 4 * 2 + 1),
        (2 * MIB + 20, 1, order.downward(1) + 7 * 2 + 1),
    ]
    assert [[(m.position, m.weight) for m in bucket.members] for bucket in buckets] == [
        [(2, "b")],
        [(2, "a"), (1, "b"), (1, "a")],
    ]


def test_buckets_are_issued_in_the_order_in_which_they_are_filled() -> None:
    """`b` fills the first bucket although its gradient comes last: the second bucket waits for its turn."""
    rows = {"layer": (weight("a", 0, 26 * MIB, made_at=1), weight("b", 1, 2 * MIB, made_at=8))}
    (stage,) = lay_out((Block("layer", 1),), (1,))
    buckets, order = fill(stage, rows, (DP,), orders=9)
    assert order.slots == 3
    assert [(bucket.bytes, bucket.base + bucket.slot) for bucket in buckets] == [
        (2 * MIB, order.downward(0) + 8 * 3 + 1),
        (26 * MIB, order.downward(0) + 8 * 3 + 2),
    ]


def test_a_bucket_of_the_step_comes_before_the_step() -> None:
    rows = {"layer": (weight("norm", 0, 8, made_at=3, buckets=("dp", "tp")), weight("b", 1, 4, made_at=5))}
    buckets, order = fill(STAGE, rows, (BucketOp("tp", "one", 1, in_step=True), DP), orders=6)
    step, backward = buckets
    assert (step.op, step.bytes, step.base + step.slot) == ("tp", 16, 1 * 2 + 1)
    assert step.base + step.slot < order.upward(0)
    assert (backward.op, backward.bytes) == ("dp", 24)
    assert [(member.weight, member.turn) for member in step.members] == [("norm", 1), ("norm", 1)]


def test_a_tied_weight_waits_for_the_head_as_well() -> None:
    tied = Weight(
        "table", "embedding", 0, 4, (Gradient("lookup.grad", "embedding", 2), Gradient("head.grad", "head", 3)), ("dp",)
    )
    (both,) = lay_out((Block("embedding", None), Block("layer", 1), Block("head", None)), (1,))
    (bucket,), _ = fill(both, {"embedding": (tied,)}, (DP,), orders=4)
    assert bucket.members[0].gradients == ((0, "lookup.grad"), (2, "head.grad"))
    first, _ = lay_out((Block("embedding", None), Block("layer", 2), Block("head", None)), (1, 1))
    (bucket,), _ = fill(first, {"embedding": (tied,)}, (DP,), orders=4)
    assert bucket.members[0].gradients == ((0, "lookup.grad"),)
