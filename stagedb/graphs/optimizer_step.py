"""The operations of a block that run once a step: reductions of single gradients, then the optimizer."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from stagedb.collectives import ALL_REDUCE
from stagedb.graphs.block import LaidOut, cut
from stagedb.graphs.costs import Sizes
from stagedb.graphs.factors import check_whole, factored
from stagedb.graphs.muon import Muon, matrices, muon_step
from stagedb.graphs.sharing import REPLICATED_HEADS, ReductionRules, reducing, shard_elements
from stagedb.ir.expressions import Expression, number, smallest, symbol, total
from stagedb.ir.layouts import Layout
from stagedb.ir.operators import (
    SGD,
    SLICE,
    Adafactor,
    AdamW,
    BlockwiseAdamW,
    EvenBlockwiseAdamW,
    MomentumSGD,
    Operator,
    Redistribution,
    Update,
)
from stagedb.ir.operators.optimizer import (
    GRADIENTS,
    HOST_GRADIENT,
    HOST_WEIGHT,
    FromHost,
    HostAdamW,
    KeptState,
    ToHost,
    WriteWeight,
)
from stagedb.ir.tensors import Operation, Tensor
from stagedb.plans.graph_options import MUONS, GraphOptions
from stagedb.workflows.training import STEP


@dataclass(frozen=True)
class UpdateRule:
    """What updates weights. operator: all weights of a block at once; muon: the matrices of layers, in its place.

    like_gradients: states are made like gradients, and not like weights (`torch.optim.SGD`). offloaded: it runs on the
    host, which has the states. factors: it updates weights one by one, matrices by means of rows and columns.
    """

    operator: Update = field(default_factory=AdamW)
    muon: Muon | None = None
    like_gradients: bool = False
    offloaded: bool = False
    factors: bool = False

    @classmethod
    def of(cls, options: GraphOptions) -> "UpdateRule":
        """The update rule that the options of a graph name."""
        framework = options.framework
        if options.optimizer in MUONS:
            return cls(AdamW(), Muon(options.gathers_for_muon, framework.splits_packed, framework.muon_positions))
        usual = OPTIMIZERS[options.optimizer]()
        return cls(
            usual,
            like_gradients=options.optimizer == "sgd-momentum",
            offloaded=options.offload == "optimizer",
            factors=options.optimizer == "adafactor",
        )


OPTIMIZERS: Mapping[str, type[Update]] = {
    "adamw": AdamW,
    "adamw-8bit": BlockwiseAdamW,
    "adamw-8bit-ao": EvenBlockwiseAdamW,
    "adafactor": Adafactor,
    "sgd": SGD,
    "sgd-momentum": MomentumSGD,
}
"""The operator of each optimizer that updates all weights alike."""


@dataclass(frozen=True)
class Tie:
    """Two weights of one value: `second` (in another block) is a copy of `first` where stages part them."""

    first: str
    second: str


MASTER = symbol("copies") - 1
"""1 where the optimizer keeps an fp32 copy of the parameters in addition to them, else 0."""


def step(
    block: LaidOut, reduction_rules: ReductionRules, tie: Tie | None, rule: UpdateRule, repeats: bool = True
) -> tuple[list[Operation], list[Tensor], dict[str, Layout], dict[str, list[str]]]:
    """The once-a-step operations of a block: reductions of single gradients, then the optimizer.

    Returns also the new tensors, all layouts, and for each weight the buckets that its gradient passes. Without
    gradients there are no operations, and frozen weights have none. repeats: ranks may hold copies of the heads of
    keys and values. rule: what updates the weights.
    """
    if not block.gradients:
        return [], [], dict(block.layouts), {weight.name: [] for weight in block.weights}
    layouts = dict(block.layouts)
    step: list[Operation] = []
    states: list[Tensor] = []
    buckets: dict[str, list[str]] = {weight.name: [] for weight in block.weights}
    together: list[tuple[Tensor, Tensor]] = []
    apart = matrices(block, rule.muon) if rule.muon is not None else frozenset()
    alone: list[Operation] = []
    for weight in block.weights:
        if weight.name not in block.gradients:
            continue
        grad, whole = _reduced(step, layouts, block, weight, (reduction_rules, tie, repeats), buckets[weight.name])
        operator = factored(block, weight) if rule.factors else rule.operator
        if isinstance(operator, BlockwiseAdamW):
            check_whole(block, weight, "AdamW of bitsandbytes")
        kept = operator.kept(weight.axes) if weight.name not in apart else ()
        own = [
            Tensor(f"{weight.name}.{state.word}", state.axes, state.dtype, "optimizer_state")
            for state in (*kept, KeptState("master", weight.axes, "fp32"))
        ]
        made = whole if rule.like_gradients else layouts[weight.name]
        layouts |= {state.name: layouts[weight.name] if is_master(state) else made.along(state.axes) for state in own}
        if rule.muon is not None and weight.name in apart:
            chain, state = muon_step(rule.muon, block, weight, grad, layouts, own[-1])
            alone += chain
            own.insert(0, state)
        elif rule.factors:
            name = f"{weight.name}.optimizer"
            alone.append(Operation(name, operator, (weight, grad, *own), (weight, *own), "step", STEP, name))
        else:
            together.append((weight, grad))
        states += own
    step += alone
    if together and rule.offloaded:
        step += _on_host(f"{block.plan.name}.optimizer", together, states, layouts)
    elif together:
        weights, ready = [weight for weight, _ in together], [grad for _, grad in together]
        held = [state for state in states if state.name.rpartition(".")[0] in {weight.name for weight in weights}]
        name = f"{block.plan.name}.optimizer"
        inputs, outputs = (*weights, *ready, *held), (*weights, *held)
        step.append(Operation(name, rule.operator, inputs, outputs, "step", STEP, name))
    return step, states, layouts, buckets


def _on_host(
    name: str, together: list[tuple[Tensor, Tensor]], states: list[Tensor], layouts: dict[str, Layout]
) -> Iterator[Operation]:
    """The operations of an optimizer on the host: a copy of each gradient, one update, and a copy of each weight back.

    name: of the update. together: weights and their gradients. layouts: those of new tensors are added.
    """

    def made(weight: Tensor, word: str, role: str) -> Tensor:
        layouts[f"{weight.name}.{word}"] = layouts[weight.name]
        return Tensor(f"{weight.name}.{word}", weight.axes, "fp32", role)

    def issued(name: str, operator: Operator, inputs: tuple[Tensor, ...], *outputs: Tensor) -> Operation:
        return Operation(name, operator, inputs, outputs, "step", STEP, name)

    weights = [weight for weight, _ in together]
    there = [made(weight, "host_gradient", HOST_GRADIENT) for weight in weights]
    back = [made(weight, "updated", HOST_WEIGHT) for weight in weights]
    for (weight, grad), copy in zip(together, there, strict=True):
        yield issued(f"{weight.name}.to_host", ToHost(), (grad,), copy)
    yield issued(name, HostAdamW(), (*weights, *there, *states), *states, *back)
    for weight, master in zip(weights, back, strict=True):
        came = made(weight, "returned", "gradient")
        yield issued(f"{weight.name}.from_host", FromHost(), (master,), came)
        yield issued(f"{weight.name}.write", WriteWeight(), (weight, came), weight)


def _reduced(
    step: list[Operation],
    layouts: dict[str, Layout],
    block: LaidOut,
    weight: Tensor,
    rules: tuple[ReductionRules, Tie | None, bool],
    names: list[str],
) -> tuple[Tensor, Layout]:
    """A weight's gradient, in the weight's layout, and the layout that its backward gives it.

    Its reductions in the step are added to `step`, those by buckets to `names`. rules: as in `step`.
    """
    reduction_rules, tie, repeats = rules
    grad = block.gradients[weight.name]
    partial = layouts[grad.name].partials()
    early = any(not bucket.template.once for bucket in reduction_rules.partial)
    if "tp" in partial and early:
        names += [bucket.name for bucket in reduction_rules.partial]
    names += [bucket.name for bucket in reducing(reduction_rules, layouts[weight.name], partial)]
    if repeats and "kv_heads" in weight.axes and not {"packed", "packed_rows", "packed_keys"} & {*weight.axes}:
        names.append(REPLICATED_HEADS)
    if "tp" in partial and not early:
        names += [bucket.name for bucket in reduction_rules.partial]
        if not reduction_rules.partial:
            grad = _reduce(step, layouts, block, grad, "tp")
    names += [bucket.name for bucket in reduction_rules.norms if bucket.takes(layouts[weight.name])]
    if tie is not None and weight.name in (tie.first, tie.second):
        grad = _reduce(step, layouts, block, grad, "embedding")
    whole = layouts[grad.name]
    for mesh_axis in whole.partials():
        whole = whole.with_(mesh_axis, None)
    while (part := cut(grad, layouts, weight, _in_step(grad))) is not None:
        step.append(part)
        (grad,) = part.outputs
    return grad, whole


def _in_step(grad: Tensor) -> Operation:
    return Operation(grad.name, Redistribution(SLICE, "tp"), (grad,), (), "step", STEP, grad.name)


def _reduce(step: list[Operation], layouts: dict[str, Layout], block: LaidOut, grad: Tensor, axis: str) -> Tensor:
    name = f"{grad.name}.{ALL_REDUCE.name}.{axis}"
    reduced = Tensor(name, grad.axes, grad.dtype, grad.role)
    layouts[name] = layouts[grad.name].with_(axis, None)
    step.append(Operation(name, Redistribution(ALL_REDUCE.name, axis), (grad,), (reduced,), "step", STEP, name))
    return reduced


@dataclass(frozen=True)
class OfShards(Sizes):
    """Sizes of the parts of weights that a rank holds where dp shards them, and of tensors of the same shape.

    `rows` is by weight and by gradient; moments and reduced gradients have names that begin with theirs. columns: see
    `shard_elements`.
    """

    rows: Mapping[str, int] = field(default_factory=dict)
    columns: bool = False

    def elements(self, tensor: Tensor, layout: Layout) -> Expression:
        """Elements of a tensor that one rank holds. layout: of the weight, before dp shards it."""
        origin = next(name for name in self.rows if tensor.name == name or tensor.name.startswith(f"{name}."))
        return shard_elements(self.local_shape(tensor, layout), self.rows[origin], layout, self.columns)


def absent_bytes(
    op: Operation, sizes: Sizes, layouts: Mapping[str, Layout], tie: Tie | None
) -> tuple[Expression, Expression]:
    """Bytes of the optimizer's operands that it does not touch.

    If one stage holds both ends of a tie: all bytes of the tied copy. Otherwise, without master copies: the master
    copies. With master copies it does not read the parameters, because it writes them from the copies. layouts: by name
    of a tensor, how ranks hold it. tie: None without tied embeddings. Returns the bytes not read and those not written,
    on one rank.
    """
    together = 0 if tie is None else 1 - smallest(symbol("pp") - 1, 1)
    owners = dict(zip((t.name for t in _gradients(op)), (w.name for w in _weights_of(op)), strict=True))

    def share(tensor: Tensor, unused: Expression) -> Expression:
        copy = tie is not None and owners.get(tensor.name, tensor.name).startswith(tie.second)
        left_out = 1 - (1 - together) * (1 - unused) if copy else unused
        return left_out * sizes.bytes(tensor, layouts[tensor.name])

    def unread(tensor: Tensor) -> Expression:
        return MASTER if tensor.role == "weight" else unwritten(tensor)

    def unwritten(tensor: Tensor) -> Expression:
        return 1 - MASTER if is_master(tensor) else number(0)

    return (
        total(share(t, unread(t)) for t in op.inputs),
        total(share(t, unwritten(t)) for t in op.operator.writes(op.inputs, op.outputs)),
    )


def is_master(tensor: Tensor) -> bool:
    """Whether a tensor is the copy of a weight in full precision that the optimizer updates."""
    return tensor.role == "optimizer_state" and tensor.name.endswith(".master")


def _weights_of(op: Operation) -> list[Tensor]:
    return [t for t in op.inputs if t.role == "weight"]


def _gradients(op: Operation) -> list[Tensor]:
    return [t for t in op.inputs if t.role in GRADIENTS]
