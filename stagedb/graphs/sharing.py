"""State that ranks share: buckets of gradients and parameters, the groups that reduce them, and the parts they keep."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from stagedb.collectives import ALL_REDUCE, CollectiveKind
from stagedb.graphs.costs import CLASS_BYTES
from stagedb.ir.expressions import Expression, ceiling, largest, number, product, smallest, symbol
from stagedb.ir.layouts import Layout, Partitioned
from stagedb.ir.symbolic_graph import Collective, SymOp, When
from stagedb.workflows import RECOMPUTE, Template
from stagedb.workflows.training import STEP

SHARDS = symbol("dp") * symbol("cp") / symbol("hsdp")
"""Members of a group over which something is sharded: the ranks of dp and cp, without replicas (hybrid sharding)."""

EXPERT_SHARDS = symbol("edp") / symbol("hsdp")
"""The same for experts: the ranks of one copy that hold the same ones."""

CONTEXT = ("cp", "cpr", "cpa")
"""The mesh axes of the ranks of cp."""


def group_of(mesh_axis: str) -> str:
    """The groups of ranks that communicate along a mesh axis of layouts.

    The groups `dp` are those over which gradients are reduced: they include the ranks of cp and exclude replicas. The
    dp of a layout does neither, so its groups have another name. mesh_axis: an axis of layouts, such as `tp` or `dp`.
    """
    return "data" if mesh_axis == "dp" else mesh_axis


def held_apart(weight: Layout) -> bool:
    """Whether a layout gives ranks of dp or cp parts of a weight, so that nothing shards the weight again."""
    return any(isinstance(weight.on(mesh_axis), Partitioned) for mesh_axis in ("dp", *CONTEXT))


def of_experts(weight: Layout) -> bool:
    """Whether a layout is that of a weight of experts: ranks of ep hold different experts."""
    return weight.on("ep") is not None


def shards(weight: Layout) -> Expression:
    """Members of a group that shares a weight. For experts: the ranks that hold the same ones."""
    if held_apart(weight):
        return number(1)
    return EXPERT_SHARDS if of_experts(weight) else SHARDS


@dataclass(frozen=True)
class BucketRule:
    """A collective over many weights, or their gradients: its rule, mesh axis, and when it runs.

    `only` is a condition in addition to the default one, that the group has more than one member. `members` is the
    number of members (None: as the mesh axis gives): a gather among so many has larger parts. `dtype` is the class on
    the wire. `parts`: an all-reduce is over one rank's parts of the gradients, not whole ones; gathers and scatters are
    always of parts. norms: it is over one number a gradient. of: whether it takes all weights, only those of `experts`
    that ranks of ep divide among them, or only `dense` ones. again: it runs where a backward computes its forward
    again. owned: the parts of a gather are whole weights, and members have unequal numbers of them.
    """

    name: str
    kind: CollectiveKind
    rule: str
    axis: str
    template: Template
    when: When = When.EVERY
    dtype: str = "reduce"
    only: Expression | None = None
    parts: bool = False
    norms: bool = False
    members: Expression | None = None
    of: Literal["all", "dense", "experts"] = "all"
    again: bool = False
    owned: bool = False

    def takes(self, weight: Layout) -> bool:
        """Whether a weight with this layout, or its gradient, is in buckets of this rule."""
        return not held_apart(weight) and (self.of == "all" or (self.of == "experts") == of_experts(weight))

    def bytes(self) -> tuple[Expression, Expression]:
        """Bytes of operand and result for one weight.

        They are expressions over `elements` of the weight, and `shard`, the elements of a rank's part.
        """
        if self.owned:
            return symbol("shard") * CLASS_BYTES[self.dtype], symbol("elements") * CLASS_BYTES[self.dtype]
        if self.norms:
            return CLASS_BYTES[self.dtype], CLASS_BYTES[self.dtype]
        if not self.kind.resizes:
            whole = (symbol("shard") if self.parts else symbol("elements")) * CLASS_BYTES[self.dtype]
            return whole, whole
        part, shards = symbol("shard") * CLASS_BYTES[self.dtype], EXPERT_SHARDS if self.axis == "edp" else SHARDS
        whole = part * shards
        if self.axis == "dp_reshard" and self.members is not None:
            part = whole / self.members
        return self.kind.sizes(part, whole)


@dataclass(frozen=True)
class ReductionRules:
    """How gradients are reduced before the optimizer reads them, and parameters gathered before they are read.

    gradients: the buckets that gradients pass over dp and cp, in that order. alone: by axis, the buckets of gradients
    that are partial on only one of the two, because of a user's strategy. context: whether there is a cp at all.
    parameters: the buckets that gather sharded parameters. partial: the buckets for gradients that are partial
    over tp; without any, each is reduced on its own once a step. sharded: whether each rank keeps only a part of the
    parameters. optimizer: whether the optimizer updates only a part. owned: whether each rank updates whole weights of
    its own. clips: whether gradients are clipped before.
    norms: the buckets of their norms then. columns: see `shard_elements`. temporaries: whether gradients are computed
    by several kernels, with values between them (`graph.temporaries`).
    """

    gradients: tuple[BucketRule, ...]
    parameters: tuple[BucketRule, ...] = ()
    partial: tuple[BucketRule, ...] = ()
    sharded: bool = False
    optimizer: bool = False
    owned: bool = False
    clips: bool = False
    norms: tuple[BucketRule, ...] = ()
    columns: bool = False
    alone: Mapping[str, tuple[BucketRule, ...]] = field(default_factory=dict)
    context: bool = True
    temporaries: bool = True


REPLICATED_HEADS = "bucket.gradients.kv"


def present_if_shared(axis: str) -> Expression:
    """Above 0 where the group of an axis has more than one member."""
    if axis == "kv":
        return largest(symbol("tp") - symbol("KV"), 0)
    if axis == "embedding":
        return symbol("pp") - 1
    if axis == "dp":
        return SHARDS - 1
    if axis == "data":
        return symbol("dp") - 1
    if axis == "edp":
        return EXPERT_SHARDS - 1
    if axis == "dp_replicate":
        return symbol("hsdp") - 1
    return symbol(axis) - 1


def reducing(reduction_rules: ReductionRules, weight: Layout, partial: tuple[str, ...]) -> list[BucketRule]:
    """The buckets that sum a weight's gradient, partial on these mesh axes, over ranks of dp and cp."""
    data, context = "dp" in partial, any(mesh_axis in partial for mesh_axis in CONTEXT)
    if not reduction_rules.context and not held_apart(weight):
        # No weight is cut over cp, even if a strategy names it.
        context = data
    if "edp" in partial or (data and context):
        return [bucket for bucket in reduction_rules.gradients if bucket.takes(weight)]
    return list(reduction_rules.alone.get("data" if data else "cp", ())) if data or context else []


def all_buckets(reduction_rules: ReductionRules) -> tuple[BucketRule, ...]:
    """All buckets, in the order in which they are issued if they are due at the same time."""
    heads = BucketRule(REPLICATED_HEADS, ALL_REDUCE, "one", "kv", STEP, parts=reduction_rules.sharded)
    return (
        *reduction_rules.parameters,
        *reduction_rules.partial,
        *reduction_rules.gradients,
        *(bucket for of_axis in reduction_rules.alone.values() for bucket in of_axis),
        heads,
        *reduction_rules.norms,
    )


def shard_elements(shape: tuple[Expression, ...], rows: int, weight: Layout, columns: bool = False) -> Expression:
    """Elements of one rank's part of a parameter that is cut into equal parts of whole rows, the last ones padded.

    columns: experts may be cut along their second axis. A rank then has parts of `kept` experts, cut into `cuts` each.
    rows: how many leading axes of the shape are rows. weight: its layout in operators.
    """
    if columns and of_experts(weight) and not held_apart(weight):
        return symbol("kept") * product(shape[rows:]) / symbol("cuts")
    return ceiling(product(shape[:rows]) / shards(weight)) * product(shape[rows:])


def bucket_ops(buckets: list[BucketRule]) -> list[SymOp]:
    """The operators of buckets: one collective for each rule, with its bytes as expressions."""
    return [
        SymOp(
            name=bucket.name,
            block="bucket",
            template=bucket.template,
            kind=bucket.kind.name,
            phase=RECOMPUTE if bucket.again else bucket.template.phase,
            when=bucket.when,
            order=order,
            reads=(),
            writes=(),
            work=Collective(bucket.axis, str(bytes_in), str(bytes_out), bucket.dtype, bucket.rule),
            present=str(_present(bucket)),
        )
        for order, bucket in enumerate(buckets)
        for bytes_in, bytes_out in [bucket.bytes()]
    ]


def _present(bucket: BucketRule) -> Expression:
    shared = present_if_shared(bucket.axis) if bucket.members is None else bucket.members - 1
    return shared if bucket.only is None else smallest(shared, bucket.only)
