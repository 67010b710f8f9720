"""The operations of a block that run once a step: reductions of gradients, then the optimizer, as AdamW or Muon."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from stagedb.collectives import ALL_GATHER, ALL_REDUCE
from stagedb.errors import UsageError
from stagedb.graphs.block import LaidOut, cut
from stagedb.graphs.costs import Sizes
from stagedb.graphs.sharing import REPLICATED_HEADS, ReductionRules, of_experts, reducing, shard_elements
from stagedb.ir.expressions import Expression, number, parse, product, smallest, symbol, total
from stagedb.ir.layouts import Layout, Partitioned
from stagedb.ir.operators import (
    SGD,
    SLICE,
    Adafactor,
    AdamW,
    BlockwiseAdamW,
    EvenBlockwiseAdamW,
    Momentum,
    MomentumSGD,
    MuonUpdate,
    Operator,
    Orthogonalisation,
    PositionEmbedding,
    Redistribution,
    Update,
)
from stagedb.ir.operators.optimizer import (
    GRADIENTS,
    HOST_GRADIENT,
    HOST_WEIGHT,
    PACKED,
    FromHost,
    HostAdamW,
    KeptState,
    ToHost,
    WriteWeight,
)
from stagedb.ir.symbolic_graph import SymOp
from stagedb.ir.tensors import Operation, Tensor
from stagedb.mentions import Word
from stagedb.plans.graph_options import MUONS, GraphOptions
from stagedb.workflows.training import STEP

# Muon's operators: a gradient becomes the average of itself, then a matrix with equal singular values, then a step.
#
# Jordan et al. 2024. The matrices are those of linear layers inside layers, which are not as wide as a vocabulary, and
# in some frameworks learned positions; AdamW updates all other weights.

STATE = "momentum_buffer"
"""The word of its state, as in `torch.optim.Muon`."""


MOMENTUM, GATHER, ORTHOGONALISATION, CUT = CHAIN = ("momentum", "gather", "orthogonalisation", "slice")
"""The words of the operators of a matrix before its update, with which their names end."""


@dataclass(frozen=True)
class Muon:
    """How Muon runs.

    gathers: ranks of tp gather the matrices that they partition. splits: see `Orthogonalisation`. positions: the table
    of learned positions is a matrix of it.
    """

    gathers: bool
    splits: bool
    positions: bool = False


@dataclass
class _Chain:
    """The operators of one weight, in order. It adds the layouts of the tensors that it makes to `layouts`."""

    weight: Tensor
    layouts: dict[str, Layout]
    operations: list[Operation] = field(default_factory=list)

    def emit(self, word: str, operator: Operator, inputs: Iterable[Tensor], *outputs: Tensor) -> None:
        """Add an operator with a name that ends in `word`."""
        name = f"{self.weight.name}.{word}"
        self.operations.append(Operation(name, operator, tuple(inputs), outputs, "step", STEP, name))

    def made(self, word: str, dtype: str, layout: Layout) -> Tensor:
        """A new tensor of the weight's shape."""
        tensor = Tensor(f"{self.weight.name}.{word}", self.weight.axes, dtype, "gradient")
        self.layouts[tensor.name] = layout
        return tensor


def matrices(block: LaidOut, muon: Muon) -> frozenset[str]:
    """The weights of a block that are matrices of Muon, with gradients: those of linear layers, and learned positions.

    A matmul reads a weight itself, or what is gathered or cast of it. muon: how it runs.
    """
    sources = {weight.name: weight.name for weight in block.weights}
    read = set[str]()
    for op in block.operations:
        names = [sources[tensor.name] for tensor in op.inputs if tensor.name in sources]
        if op.operator.kind == "matmul" or (muon.positions and isinstance(op.operator, PositionEmbedding)):
            read |= {*names}
        elif len(op.inputs) == 1:
            sources |= dict.fromkeys((tensor.name for tensor in op.outputs), *names) if names else {}
    return frozenset(
        weight.name
        for weight in block.weights
        if weight.name in block.gradients and weight.name in read and _is_matrix(block, weight)
    )


def _is_matrix(block: LaidOut, weight: Tensor) -> bool:
    """Whether a weight is no bias, and not as wide as a vocabulary."""
    if of_experts(block.layouts[weight.name]):
        return len(weight.axes) > 2
    return block.rows[weight.name] < len(weight.axes) and "vocab" not in weight.axes


def muon_step(
    muon: Muon, block: LaidOut, weight: Tensor, gradient: Tensor, layouts: dict[str, Layout], master: Tensor
) -> tuple[list[Operation], Tensor]:
    """The operators that update one weight, and its state.

    gradient: reduced, in the weight's layout. layouts: those of the new tensors are added. master: the copy of the
    weight that is updated in its place, where there is one. UsageError for a matrix that a strategy cuts over other
    axes than tp, and for fused projections that are not split as queries, keys and values of one size.
    """
    chain, own = _Chain(weight, layouts), layouts[weight.name]
    _check_whole(weight, own)
    state = Tensor(f"{weight.name}.{STATE}", weight.axes, "opt", "optimizer_state")
    layouts[state.name] = own
    update = chain.made("direction", gradient.dtype, own)
    chain.emit(MOMENTUM, Momentum(), (gradient, state), update, state)
    cut = own.on("tp") if muon.gathers else None
    gathered = own.with_("tp", None) if isinstance(cut, Partitioned) else own
    if isinstance(cut, Partitioned):
        whole = chain.made("direction.whole", gradient.dtype, gathered)
        chain.emit(GATHER, Redistribution(ALL_GATHER.name, "tp", source=cut.axis), (update,), whole)
        update = whole
    made = chain.made("orthogonal", "bf16", gathered)
    chain.emit(ORTHOGONALISATION, _orthogonalisation(muon, block, weight), (update,), made)
    if isinstance(cut, Partitioned):
        part = chain.made("orthogonal.part", "bf16", own)
        chain.emit(CUT, Redistribution(SLICE, "tp", target=cut.axis), (made,), part)
        made = part
    chain.emit("optimizer", MuonUpdate(), (weight, made, master), weight, master)
    return chain.operations, state


def _check_whole(weight: Tensor, layout: Layout) -> None:
    cut = [axis for axis, _ in layout.placements if axis not in ("tp", "ep", "epn", "epr")]
    if cut:
        raise UsageError(
            f"Muon needs whole matrices, and the strategy partitions {weight.name} over {cut[0]}: take "
            f"{Word('optimizer', 'adamw')}, or leave {cut[0]} out of the strategy's rule for this weight"
        )


def _orthogonalisation(muon: Muon, block: LaidOut, weight: Tensor) -> Orthogonalisation:
    """How Muon makes a weight's matrices orthogonal: their axes, and how many there are (one for each expert)."""
    axes, rows = weight.axes, block.rows[weight.name]
    if of_experts(block.layouts[weight.name]):
        return Orthogonalisation(axes[1:-1], axes[-1:], axes[:1])
    fused = next((axis for axis in axes if axis.startswith(PACKED)), None)
    if muon.splits and fused not in (None, PACKED):
        raise UsageError(
            f"{weight.name} has queries, gates, keys or values of different sizes in one matrix, which Muon has to "
            f"split: take {Word('recipe', 'torch')}, where each is a matrix, or {Word('optimizer', 'adamw')}"
        )
    return Orthogonalisation(axes[:rows], axes[rows:], split=muon.splits and fused == PACKED)


# Adafactor's matrices: the rows and columns of each weight as PyTorch has it.
#
# `torch.optim.Adafactor` factors the last two dimensions of a parameter. Those of the graph's weights have names, and
# those that a framework has as one dimension are several of them.

_MATRICES = ("matmul", "embedding")
"""The kinds of operators that read a weight as a matrix."""


def factored(block: LaidOut, weight: Tensor) -> Adafactor:
    """The operator that updates a weight of a block by the means of its rows and columns; of a vector by its squares.

    UsageError for a weight that a strategy cuts over dp or cp, and for one of a shape that PyTorch may have otherwise.
    """
    check_whole(block, weight, "Adafactor")
    axes, rows = weight.axes, block.rows[weight.name]
    if of_experts(block.layouts[weight.name]) and len(axes) > 1:
        return Adafactor(axes[1:-1], axes[-1:], axes[:1]) if len(axes) > 2 else Adafactor(axes[:1], axes[1:])
    if rows == len(axes) and (len(axes) == 1 or weight.name.endswith(".bias")):
        return Adafactor()
    if rows < len(axes) and not _readers(block, weight).isdisjoint(_MATRICES):
        return Adafactor(axes[:rows], axes[rows:])
    raise UsageError(
        f"Adafactor keeps means of the last two dimensions of a parameter, and {weight.name} is neither a vector nor "
        f"of a linear layer or an embedding: take {Word('optimizer', 'adamw')}"
    )


def check_whole(block: LaidOut, weight: Tensor, name: str) -> None:
    """Raise UsageError for a weight that a strategy cuts over dp or cp. name: of an optimizer of whole weights."""
    cut = [axis for axis, _ in block.layouts[weight.name].placements if axis not in ("tp", "ep", "epn", "epr")]
    if cut:
        raise UsageError(
            f"{name} needs whole weights, and the strategy partitions {weight.name} over {cut[0]}: take "
            f"{Word('optimizer', 'adamw')}, or leave {cut[0]} out of the strategy's rule for this weight"
        )


def _readers(block: LaidOut, weight: Tensor) -> set[str]:
    """The kinds of operators that read a weight itself, or what is gathered or cast of it."""
    names, kinds = {weight.name}, set[str]()
    for op in block.operations:
        read = [tensor.name for tensor in op.inputs if tensor.name in names]
        if read and len(op.inputs) == 1:
            names |= {tensor.name for tensor in op.outputs}
        if read:
            kinds.add(op.operator.kind)
    return kinds


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


# Weights that each rank of dp updates whole: what an optimizer's operators cost by how many of them are a rank's own.
#
# Megatron-Core 0.16.1, `LayerWiseDistributedOptimizer` in megatron/core/optimizer/layer_wise_optimizer.py. A weight is
# one parameter, and that of the experts of a layer as many as a rank has experts. Which of them are a rank's own
# follows from all weights of its stage (`stagedb.lowering.rank_classes`). Expressions have a symbol for each weight.

EXPERTS = "experts"
"""The axis of weights that have a matrix for each expert."""


def owned_symbol(block: int, order: int) -> str:
    """The symbol of how many parameters of a weight are a rank's own, and one more, because symbols are above 0.

    block: its place among the blocks of the graph. order: of the weight's registration in the block.
    """
    return f"owned_{block}_{order}"


def parameters_of(weight: Tensor, layout: Layout, sizes: Sizes) -> Expression:
    """How many parameters of the framework a weight is on one rank: one, or one of each expert.

    weight: of a block. layout: its layout. sizes: those of the block's axes.
    """
    return sizes.local(EXPERTS, layout.cuts(EXPERTS)) if of_experts(layout) else number(1)


@dataclass(frozen=True)
class SharedSizes(Sizes):
    """Sizes of what an update touches of each weight. shares: by weight and by gradient, the part that is its own."""

    shares: Mapping[str, Expression] = field(default_factory=dict)

    def elements(self, tensor: Tensor, layout: Layout) -> Expression:
        """Elements of a weight, or of a tensor that is named after one, that one rank updates."""
        origin = next(name for name in self.shares if tensor.name == name or tensor.name.startswith(f"{name}."))
        return super().elements(tensor, layout) * self.shares[origin]


@dataclass(frozen=True)
class OwnedLayers:
    """The weights of a block of which each rank of dp updates its own.

    counts: by weight, how many of its parameters are a rank's own. all_of: how many it has. sizes: of the block's axes.
    """

    block: LaidOut
    sizes: Sizes
    counts: Mapping[str, Expression]
    all_of: Mapping[str, Expression]

    @classmethod
    def of(cls, number: int, block: LaidOut, sizes: Sizes) -> "OwnedLayers":
        """Those of a block. number: its place among the blocks of the graph. sizes: of its axes."""
        counts = {each.name: symbol(owned_symbol(number, order)) - 1 for order, each in enumerate(block.weights)}
        all_of = {each.name: parameters_of(each, block.layouts[each.name], sizes) for each in block.weights}
        return cls(block, sizes, counts, all_of)

    def updated(self, op: Operation) -> tuple[str, ...]:
        """The weights that an operation updates, or makes something for in their update."""
        if not op.template.once:
            return ()
        if isinstance(op.operator, Update):
            return tuple(tensor.name for tensor in op.inputs if tensor.role == "weight")
        weight, _, word = op.name.rpartition(".")
        return (weight,) if weight in self.counts and word in CHAIN else ()

    def sizes_of(self, op: Operation) -> Sizes:
        """The sizes of an operation's tensors, as far as they are of weights of one's own.

        An operation of one weight of experts is over fewer experts. One of several weights touches parts of them.
        """
        weights = self.updated(op)
        if not weights:
            return self.sizes
        if len(weights) > 1:
            shares = {name: self.counts[name] / self.all_of[name] for name in weights}
            shares |= {grad.name: shares[name] for name, grad in self.block.gradients.items() if name in shares}
            return SharedSizes(self.sizes.axes, self.sizes.replicable, shares)
        layout = self.block.layouts[weights[0]]
        if not of_experts(layout):
            return self.sizes
        spread = product(symbol(axis) for axis in layout.cuts(EXPERTS))
        return Sizes({**self.sizes.axes, EXPERTS: self.counts[weights[0]] * spread}, self.sizes.replicable)

    def placed(self, op: Operation, row: SymOp) -> SymOp:
        """The row of an operation with the condition that some of what it updates is a rank's own."""
        weights = self.updated(op)
        if not weights:
            return row
        present = total(self.counts[name] for name in weights)
        return replace(row, present=str(present if row.present is None else smallest(parse(row.present), present)))
