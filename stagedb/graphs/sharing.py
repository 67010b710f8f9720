"""State that ranks share: buckets of gradients and parameters, the groups that reduce them, and the parts they keep."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from stagedb.collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, CollectiveKind
from stagedb.frameworks import Framework
from stagedb.frameworks.bucket_policies import EACH, EACH_AT_END, NORM, ONE, ROOT, UNIT_AT_END
from stagedb.graphs.costs import CLASS_BYTES
from stagedb.ir.expressions import Expression, ceiling, largest, number, product, smallest, symbol
from stagedb.ir.layouts import Layout, Partitioned
from stagedb.ir.symbolic_graph import Collective, SymOp, When
from stagedb.plans.graph_options import GraphOptions
from stagedb.workflows import RECOMPUTE, Template, Workflow, find_workflow
from stagedb.workflows.training import FORWARD, INPUT_GRADIENT, STEP, WEIGHT_GRADIENT

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


# State that data-parallel ranks share, by ZeRO stage and framework, as buckets of gradients and parameters.
#
# Stages: Rajbhandari et al. 2020. Stage 1 shards the optimizer. Stage 2 also shards gradients and keeps parameters
# gathered between forward and backward. Stage 3 does not keep them. `stagedb.frameworks` names the collectives of each
# framework.

ALONE, PIPELINED = 2 - symbol("pp"), symbol("pp") - 1
"""Above 0 with one stage, and with several."""


def reduction_rules(options: GraphOptions, framework: Framework, experts: bool = False) -> ReductionRules:
    """The buckets of a graph, and whether its kernels are composite. experts: whether the model has some."""
    found = _of_workflow(
        replace(
            _shared(options, framework),
            alone=_alone(options, framework),
            context=options.cp_kind != "none",
            temporaries=framework.composite_kernels,
            clips=options.clip_norm,
            norms=_norms(options),
        ),
        find_workflow(options.workflow),
    )
    if not experts:
        return found
    if not options.ep_sync:
        return replace(found, gradients=tuple(replace(bucket, axis="edp") for bucket in found.gradients))
    # Once this exceeds 1, the ranks that hold the same experts differ from those that hold the same other weights.
    divided = symbol("ep") * (symbol("tp") if options.experts_over_tp else 1)
    apart = partial(_units, options=options) if options.expert_unit else _apart
    gradients, parameters = (
        tuple(part for bucket in buckets for part in apart(bucket, divided))
        for buckets in (found.gradients, found.parameters)
    )
    norms = _norms_apart(found.norms, divided, options)
    columns = framework.cuts_columns and options.zero >= 2
    return replace(found, gradients=gradients, parameters=parameters, norms=norms, columns=columns)


def _of_workflow(found: ReductionRules, workflow: Workflow) -> ReductionRules:
    """The buckets that a workflow needs, if it does not have all templates."""
    templates = workflow.templates
    return replace(
        found,
        gradients=tuple(bucket for bucket in found.gradients if bucket.template in templates),
        parameters=tuple(bucket for bucket in found.parameters if bucket.template in templates),
        partial=tuple(bucket for bucket in found.partial if bucket.template in templates),
        alone={
            axis: tuple(bucket for bucket in buckets if bucket.template in templates)
            for axis, buckets in found.alone.items()
        },
        norms=tuple(bucket for bucket in found.norms if bucket.template in templates),
    )


def _norms(options: GraphOptions) -> tuple[BucketRule, ...]:
    """The norms of gradients: one message on each axis that shards some, with a number for each weight of the stage,
    then one number between stages.

    The second is torchtitan's `clip_grad_norm_`: `torch.nn.utils.get_total_norm` knows one mesh.
    """
    if not options.clip_norm:
        return ()
    sharded = ("dp", "tp") if options.zero >= 2 else ()
    found = [_norm(axis, axis) for axis in sharded]
    return (*found, replace(_norm("pp", "pp"), rule=NORM.name))


def _norm(word: str, axis: str) -> BucketRule:
    return BucketRule(f"bucket.norms.{word}", ALL_REDUCE, ONE.name, axis, STEP, dtype="param", norms=True)


def _norms_apart(norms: tuple[BucketRule, ...], divided: Expression, options: GraphOptions) -> tuple[BucketRule, ...]:
    """The norms where ranks divide experts: those of experts are on a mesh of their own, and are reduced first."""
    if not norms:
        return ()
    experts = {"edp": symbol("edp") - symbol("hsdp"), "ep": symbol("ep") - 1}
    if options.expert_tp:
        experts["tp"] = symbol("tp") - 1
    apart = [
        replace(_norm(f"{axis}.experts", axis), only=smallest(shared, divided - 1), of="experts")
        for axis, shared in experts.items()
        if options.zero >= 2
    ]
    found: list[BucketRule] = []
    for bucket in norms:
        if bucket.axis == "pp":
            found += [bucket]
            continue
        found += [
            replace(bucket, only=2 - divided),
            replace(bucket, name=f"{bucket.name}.dense", only=divided - 1, of="dense"),
        ]
    return (*apart, *found)


def _alone(options: GraphOptions, framework: Framework) -> dict[str, tuple[BucketRule, ...]]:
    """A gradient that is equal, or split, on the ranks of dp or of cp is summed over the other axis only.

    It comes after its sum over tp (`_partial`), which a pipeline may leave for the end of its last backward.
    """
    times = _times_reduced(options, framework) if options.zero >= 2 else (_WhenReduced("", When.LAST),)
    usual = (framework.buckets.gradients if options.zero < 2 else framework.buckets.units).name

    def bucket(axis: str, reduced_at: _WhenReduced) -> BucketRule:
        name, rule = f"bucket.gradients.{axis}{reduced_at.suffix}", UNIT_AT_END.name if reduced_at.at_end else usual
        return BucketRule(name, ALL_REDUCE, rule, axis, WEIGHT_GRADIENT, _when(options), only=reduced_at.only)

    axes = ("data", "cp") if options.cp_grad_sync else ("data",)
    return {axis: tuple(bucket(axis, reduced_at) for reduced_at in times) for axis in axes}


def _apart(bucket: BucketRule, divided: Expression) -> tuple[BucketRule, ...]:
    """Experts that are divided among ranks have buckets of their own, among the ranks with the same experts.

    These ranks are the members, however cp treats the gradients of other weights. The copies of hybrid sharding have
    each expert on ranks with the same places, so that parts of experts are reduced over the same groups as others.
    """
    if bucket.axis not in ("dp", "dp_replicate"):
        return (bucket,)

    def where(condition: Expression) -> Expression:
        return condition if bucket.only is None else smallest(bucket.only, condition)

    together, apart = where(2 - divided), where(divided - 1)
    axis = "edp" if bucket.axis == "dp" else bucket.axis
    return (
        replace(bucket, only=together),
        replace(bucket, name=f"{bucket.name}.dense", only=apart, of="dense"),
        replace(bucket, name=f"{bucket.name}.experts", axis=axis, only=apart, of="experts", members=None),
    )


def _units(bucket: BucketRule, divided: Expression, options: GraphOptions) -> tuple[BucketRule, ...]:
    """Experts are a unit of their own, whether ranks divide them or not: with buckets like those of other weights.

    If the backward computes layers again, the last unit of experts is gathered in there.
    """
    if bucket.axis not in ("dp", "dp_replicate", "dp_reshard"):
        return (bucket,)
    one = replace(bucket, name=f"{bucket.name}.experts", of="experts")
    experts = [one]
    if bucket.axis == "dp":
        apart, together = (
            condition if bucket.only is None else smallest(bucket.only, condition)
            for condition in (divided - 1, 2 - divided)
        )
        experts = [
            replace(one, axis="edp", only=apart, members=None),
            replace(one, name=f"{one.name}.whole", only=together),
        ]
    if options.recompute == "full" and bucket.kind.gathers and bucket.template.differentiates:
        experts += [replace(each, name=f"{each.name}.again", again=True) for each in experts]
    return (replace(bucket, name=f"{bucket.name}.dense", of="dense"), *experts)


def _shared(options: GraphOptions, framework: Framework) -> ReductionRules:
    partial: tuple[BucketRule, ...] = ()
    if framework.sequence_parallel_gradients == "one":
        partial = (BucketRule("bucket.gradients.tp", ALL_REDUCE, ONE.name, "tp", STEP, parts=options.zero == 3),)
    if options.owns_layers:
        update = BucketRule("bucket.parameters.update", ALL_GATHER, ONE.name, "dp", STEP, dtype="param", owned=True)
        return ReductionRules((_reduced(options, framework),), (update,), partial, owned=True)
    if options.zero == 0:
        return ReductionRules((_reduced(options, framework),), partial=partial)
    if options.zero == 1:
        rule = framework.buckets.optimizer.name
        update = BucketRule("bucket.parameters.update", ALL_GATHER, rule, "dp", STEP, dtype="param")
        return ReductionRules(_sharded_optimizer(options, framework), (update,), partial, optimizer=True)
    if framework.partial_in_backward:
        partial = tuple(_partial(reduced_at) for reduced_at in _times_reduced(options, framework))
    return ReductionRules(
        _sharded_gradients(options, framework), _gathered(options, framework), partial, sharded=True, optimizer=True
    )


@dataclass(frozen=True)
class _WhenReduced:
    """When sharded units reduce gradients: under a condition on the stages, for which micro-batches.

    suffix: of the names of its buckets. at_end: after the whole backward.
    """

    suffix: str
    when: When
    only: Expression | None = None
    at_end: bool = False


def _times_reduced(options: GraphOptions, framework: Framework) -> tuple[_WhenReduced, ...]:
    alone = When.LAST if options.grad_sync is False else When.EVERY
    if not stays_open(options, framework):
        return (_WhenReduced("", alone),)
    return (_WhenReduced("", alone, ALONE), _WhenReduced(".last", When.LAST, PIPELINED, at_end=True))


def stays_open(options: GraphOptions, framework: Framework) -> bool:
    """Whether a pipeline leaves units gathered after a backward, and reduces their gradients after the last one."""
    differentiates = find_workflow(options.workflow).differentiates
    return differentiates and framework.pipelined_sync == "last" and not options.grad_sync


def _when(options: GraphOptions) -> When:
    return When.EVERY if options.grad_sync else When.LAST


def _reduced(options: GraphOptions, framework: Framework) -> BucketRule:
    rule = framework.buckets.gradients.name
    members = None if options.cp_grad_sync else symbol("dp")
    return BucketRule("bucket.gradients.dp", ALL_REDUCE, rule, "dp", WEIGHT_GRADIENT, _when(options), members=members)


def _sharded_optimizer(options: GraphOptions, framework: Framework) -> tuple[BucketRule, ...]:
    if not framework.optimizer_sharding.scatters:
        return (_reduced(options, framework),)
    backward, rule = WEIGHT_GRADIENT, framework.buckets.optimizer.name
    return (
        BucketRule("bucket.gradients.scatter", REDUCE_SCATTER, rule, "dp", backward, When.LAST),
        BucketRule("bucket.gradients.replicas", ALL_REDUCE, rule, "dp_replicate", backward, When.LAST, parts=True),
    )


def _partial(reduced_at: _WhenReduced) -> BucketRule:
    """Gradients that are partial over tp, before they are scattered.

    Each is summed as the backward made it. Sums over micro-batches already have the format of the reduction.
    """
    name, rule = f"bucket.gradients.tp{reduced_at.suffix}", EACH_AT_END if reduced_at.at_end else EACH
    dtype = "reduce" if reduced_at.when is When.LAST else "grad"
    return BucketRule(name, ALL_REDUCE, rule.name, "tp", WEIGHT_GRADIENT, reduced_at.when, dtype, reduced_at.only)


def _sharded_gradients(options: GraphOptions, framework: Framework) -> tuple[BucketRule, ...]:
    """Units are reduced where their backward ends, or after all of them. The rest is reduced over replicas."""

    def bucket(reduced_at: _WhenReduced, word: str, kind: CollectiveKind, axis: str) -> BucketRule:
        name = f"bucket.gradients.{word}{reduced_at.suffix}"
        rule = (UNIT_AT_END if reduced_at.at_end else framework.buckets.units).name
        parts = not kind.resizes
        return BucketRule(name, kind, rule, axis, WEIGHT_GRADIENT, reduced_at.when, only=reduced_at.only, parts=parts)

    return tuple(
        bucket(reduced_at, *words)
        for reduced_at in _times_reduced(options, framework)
        for words in (("scatter", REDUCE_SCATTER, "dp"), ("replicas", ALL_REDUCE, "dp_replicate"))
    )


def _gathered(options: GraphOptions, framework: Framework) -> tuple[BucketRule, ...]:
    """Units are gathered before their forward. Freed units of layers are gathered again before their backward.

    A pipeline frees units that a forward leaves gathered only after the last backward, so that the first forward
    gathers them for all. Layers that are freed after a forward stay gathered from a backward to the next forward.
    """

    def gather(name: str, rule: str, template: Template, when: When, only: Expression | None) -> BucketRule:
        return BucketRule(f"bucket.parameters.{name}", ALL_GATHER, rule, "dp", template, when, "act", only)

    every, units, again = When.EVERY, framework.buckets.units.name, framework.buckets.regathered.name
    open_, alone = stays_open(options, framework), ALONE
    if not options.resharded:
        found = [gather("gather", units, FORWARD, every, alone)]
        return (*found, gather("gather.first", units, FORWARD, When.FIRST, PIPELINED))
    regather = gather("regather", again, INPUT_GRADIENT, every, alone if open_ else None)
    if options.reshard_to is not None:
        regather = replace(regather, axis="dp_reshard", members=number(options.reshard_to))
    found = [gather("gather", units, FORWARD, every, alone if open_ else None), regather]
    if open_:
        found += [
            gather("gather.first", ROOT.name, FORWARD, When.FIRST, PIPELINED),
            gather("gather.closed", again, FORWARD, When.CLOSED, PIPELINED),
            gather("regather.closed", again, INPUT_GRADIENT, When.CLOSED, PIPELINED),
        ]
    return tuple(found)
