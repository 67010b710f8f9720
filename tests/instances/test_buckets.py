"""Where the collectives of buckets are issued, and what they carry."""

from stagedb.frameworks import bucket_policy
from stagedb.frameworks.bucket_policies import MIB
from stagedb.lowering.bucket_members import BucketOp, OpPlace, Weight, fill
from stagedb.lowering.stage_blocks import Block, lay_out
from stagedb.workflows import Template
from stagedb.workflows.training import FORWARD, INPUT_GRADIENT, STEP, WEIGHT_GRADIENT


def weight(name: str, order: int, size: int, made_at: int, buckets: tuple[str, ...] = ("dp",)) -> Weight:
    """A weight of block `layer` whose gradient op is issued as number `made_at`."""
    gradient = OpPlace(f"{name}.grad", "layer", made_at, WEIGHT_GRADIENT)
    return Weight(name, "layer", order, size, 0, (gradient,), buckets)


def reduction(name: str, rule: str, order: int, template: Template) -> BucketOp:
    return BucketOp(name, bucket_policy(rule), order, template, False, 2, lambda elements, shard: (elements, elements))


(STAGE,) = lay_out((Block("embedding", None), Block("layer", 2)), (2,))
DP = reduction("dp", "ddp", 0, WEIGHT_GRADIENT)


def test_a_bucket_comes_right_after_the_last_gradient_in_it() -> None:
    """Layer 1 is at position 2: the backward reaches it first. Its second weight fills the first bucket alone."""
    rows = {"layer": (weight("a", 0, 10, made_at=7), weight("b", 1, 2 * MIB, made_at=4))}
    buckets, order = fill(STAGE, rows, (DP,), orders=9)
    assert order.slots == 2
    assert [(bucket.bytes_in, bucket.position, bucket.base + bucket.slot) for bucket in buckets] == [
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
    assert [(bucket.bytes_in, bucket.base + bucket.slot) for bucket in buckets] == [
        (2 * MIB, order.downward(0) + 8 * 3 + 1),
        (26 * MIB, order.downward(0) + 8 * 3 + 2),
    ]


def test_a_bucket_of_the_step_comes_before_the_step() -> None:
    rows = {"layer": (weight("norm", 0, 8, made_at=3, buckets=("dp", "tp")), weight("b", 1, 4, made_at=5))}
    buckets, order = fill(STAGE, rows, (reduction("tp", "one", 1, STEP), DP), orders=6)
    backward, step = buckets
    assert (step.op, step.bytes_in, step.base + step.slot) == ("tp", 16, 1 * 2 + 1)
    assert step.base + step.slot < order.upward(0)
    assert (backward.op, backward.bytes_in) == ("dp", 24)
    assert [(member.weight, member.turn) for member in step.members] == [("norm", 1), ("norm", 1)]


def test_a_tied_weight_waits_for_the_head_as_well() -> None:
    makers = (
        OpPlace("lookup.grad", "embedding", 2, WEIGHT_GRADIENT),
        OpPlace("head.grad", "head", 3, WEIGHT_GRADIENT),
    )
    tied = Weight("table", "embedding", 0, 4, 0, makers, ("dp",))
    (both,) = lay_out((Block("embedding", None), Block("layer", 1), Block("head", None)), (1,))
    (bucket,), _ = fill(both, {"embedding": (tied,)}, (DP,), orders=4)
    assert bucket.members[0].gradients == ((0, "lookup.grad"), (2, "head.grad"))
    first, _ = lay_out((Block("embedding", None), Block("layer", 2), Block("head", None)), (1, 1))
    (bucket,), _ = fill(first, {"embedding": (tied,)}, (DP,), orders=4)
    assert bucket.members[0].gradients == ((0, "lookup.grad"),)


def gathered(name: str, rule: str, template: Template) -> BucketOp:
    return BucketOp(name, bucket_policy(rule), 0, template, True, 2, lambda elements, shard: (shard, 2 * shard))


def sharded(name: str, block: str, order: int, elements: int) -> Weight:
    read = OpPlace(f"{name}.read", block, 1, FORWARD)
    again = OpPlace(f"{name}.again", block, 2, INPUT_GRADIENT)
    step = OpPlace(f"{block}.optimizer", block, 0, STEP)
    made = (OpPlace(f"{name}.grad", block, 3, WEIGHT_GRADIENT),)
    gathers = ("gather", "regather")
    return Weight(name, block, order, elements, -(-elements // 2), made, ("scatter",), gathers, (read, again, step))


def test_units_are_gathered_before_they_are_read_and_scattered_where_their_backward_ends() -> None:
    """Three layers between an embedding and a head: FSDP2's units are each layer, and a root of what is outside."""
    (stage,) = lay_out((Block("embedding", None), Block("layer", 3), Block("head", None)), (3,))
    weights = {
        "embedding": (sharded("table", "embedding", 0, 101),),
        "layer": (sharded("a", "layer", 0, 10), sharded("b", "layer", 1, 5)),
        "head": (sharded("out", "head", 0, 20),),
    }
    ops = (
        gathered("gather", "unit", FORWARD),
        gathered("regather", "layers", INPUT_GRADIENT),
        BucketOp(
            "scatter", bucket_policy("unit"), 1, WEIGHT_GRADIENT, False, 2, lambda elements, shard: (2 * shard, shard)
        ),
    )
    (reading,) = [reader for reader in weights["head"][0].readers if reader.template is INPUT_GRADIENT]
    last = {("layer", "forward"): "b.read", ("layer", "backward"): "a.grad", ("head", "backward"): "out.grad"}
    buckets, order = fill(stage, weights, ops, orders=4, last=last)

    def shown(op: str) -> list[tuple[int, int, int, list[str]]]:
        own = [bucket for bucket in buckets if bucket.op == op]
        return [
            (each.base + each.slot, each.bytes_in, each.bytes_out, [m.weight for m in each.members]) for each in own
        ]

    # What is outside layers comes after the stage's input, and before the first layer.
    before = [order.upward(0) - 2 * order.slots + 1]
    before += [order.upward(position) - order.slots + 1 for position in (1, 2, 3)]
    assert shown("gather") == [
        (before[0], 61, 122, ["table", "out"]),
        *((number, 8, 16, ["a", "b"]) for number in before[1:]),
    ]
    # Layer 3's where the head's backward first reads a weight, behind that of the loss; layer 2's before layer 3's, …
    head = order.downward(4) + reading.order * order.slots
    starts = [number - order.slots + 1 for number in (head, order.downward(3), order.downward(2))]
    assert [number for number, *_ in shown("regather")] == [starts[0], starts[1], starts[2] + 1]
    ends = [order.downward(position) + 3 * order.slots + 1 for position in (3, 2, 1, -1)]
    assert shown("scatter") == [
        *((number, 16, 8, ["a", "b"]) for number in ends[:3]),
        (ends[3], 122, 61, ["table", "out"]),
    ]
    waits = {(each.op, each.position): each.after for each in buckets}
    assert waits["gather", 1] == waits["gather", 2] == ()
    assert waits["gather", 3] == ((1, "b.read"),)
    assert waits["regather", 3] == ()
    assert waits["regather", 2] == ((4, "out.grad"),)
    assert waits["regather", 1] == ((3, "a.grad"),)
    (root,) = [each for each in buckets if each.op == "gather" and each.bytes_in == 61]
    assert root.members[0].readers == ((0, "table.read"),)
    again = next(each for each in buckets if each.op == "regather")
    assert again.members[0].readers == ((3, "a.again"),)


def test_a_buffer_is_padded_as_megatron_pads_it() -> None:
    """Parameters begin at multiples of 64 elements; the whole is a multiple of lcm(parts, 128)."""
    op = BucketOp(
        "scatter", bucket_policy("buffer"), 0, WEIGHT_GRADIENT, False, 3, lambda elements, shard: (elements, shard)
    )
    rows = {"layer": (weight("a", 0, 100, 1, ("scatter",)), weight("b", 1, 1, 2, ("scatter",)))}
    (stage,) = lay_out((Block("layer", 2),), (2,))
    (bucket,), _ = fill(stage, rows, (op,), orders=4)
    assert (bucket.bytes_in, bucket.bytes_out) == (384, 128)
