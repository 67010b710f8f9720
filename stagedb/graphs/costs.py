"""What tensors and operations cost on one rank, as expressions of sizes, degrees and dtype widths."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stagedb.ir.expressions import Expression, ceiling, largest, number, product, smallest, symbol, total
from stagedb.ir.layouts import Layout, Partitioned
from stagedb.ir.operators import (
    BEFORE,
    KEYS,
    QUERIES,
    Adafactor,
    CrossEntropyGradient,
    Gate,
    GateGradient,
    MeanSquare,
    MeanSquareGradient,
    Operator,
    Orthogonalisation,
    RingStepGradient,
    RMSNorm,
    RMSNormGradient,
    SumExp,
    SumProduct,
    WeightedSum,
    WeightedSumGradient,
)
from stagedb.ir.operators.scored_pairs import ADDED, dealt
from stagedb.ir.operators.token_copies import TOKENS
from stagedb.ir.packed_weights import PACKED
from stagedb.ir.tensors import Operation, Tensor
from stagedb.workflows import Workflow

CLASS_BYTES: Mapping[str, Expression] = {
    **{name: symbol(f"e_{name}") for name in ("act", "param", "grad", "reduce", "opt", "logits", "cache")},
    "fp32": number(4),
    "bf16": number(2),
    "fp8_e4m3": number(1),
    "fp8_e5m2": number(1),
    "int64": number(8),
    "bool": number(1),
}
"""Bytes an element of each dtype class."""

BLOCK, LEAST = 256, 4096
"""Numbers of a block that share a scale, and of the smallest tensor that has blocks."""


def _blocks(numbers: Expression) -> Expression:
    """Bytes of a state of `bitsandbytes.optim.AdamW8bit` (`Optimizer2State.init_state`): a byte a number and an fp32
    scale a block, the last one of which may be smaller; fp32 where it is small."""
    return 4 * numbers + smallest(_times_least(numbers), 1) * (4 * ceiling(numbers / BLOCK) - 3 * numbers)


def _even_blocks(numbers: Expression) -> Expression:
    """Bytes of a state of `torchao.optim.AdamW8bit` (`_AdamBase._new_buffer`): a byte a number, an fp32 scale a block
    and a table of 256 values; as the weight where it is small, or its blocks would not be full."""
    plain, blocks = numbers * CLASS_BYTES["param"], numbers / BLOCK
    full = 1 - smallest(BLOCK * (ceiling(blocks) - blocks), 1)
    return plain + smallest(_times_least(numbers), full) * (numbers + 4 * blocks + 4 * 256 - plain)


def _times_least(numbers: Expression) -> Expression:
    """How many times the smallest tensor that has blocks fits into a tensor. numbers: its elements."""
    return ceiling((numbers + 1) / LEAST) - 1


BLOCKED: Mapping[str, Callable[[Expression], Expression]] = {"blocks": _blocks, "even_blocks": _even_blocks}
"""Bytes of a tensor of a class whose numbers are kept in blocks, by how many it has."""


def _filled(layout: Layout, experts: Expression) -> Expression:
    """The part of the slots of this rank's experts that has tokens: all, unless some experts are chosen more often.

    experts: how many there are, with copies.
    """
    over = [axis for axis in ("ep", "tp") if layout.on(axis) == Partitioned("experts")]
    loads = {(): symbol("load_all"), ("tp",): symbol("load_dealt") - 1}
    share = loads.get(tuple(over), symbol("load_here") - 1) / (experts * symbol("load_most"))
    for axis in over:
        share = share * symbol(axis)
    return share


def _sent(layout: Layout, axes: Mapping[str, Expression], targets: tuple[str, ...]) -> Expression:
    """The part of the room for copies of tokens that is filled, where a token is sent once for each target.

    Room is for all tokens of each sender at each target.
    """
    ranks = layout.on("ep") == Partitioned("ranks") or layout.on("epr") == Partitioned("locals")
    if "nodes" not in targets:
        count, places = "copies_in" if ranks else "copies_out", "ep"
    elif "locals" in targets:
        count, places = "copies_in" if ranks else "relayed", "ep"
    else:
        count, places = "node_copies_in" if layout.on("epn") == Partitioned("nodes") else "node_copies_out", "epn"
    return (symbol(count) - 1) / (axes["dealt"] * symbol(places))


@dataclass(frozen=True)
class Sizes:
    """The global size of every named axis. Axes in `replicable` are repeated where a degree exceeds their size.

    Each expert has as many slots as the one that most tokens choose. Elements, bytes and FLOPs count only the slots
    that have tokens, and only the filled part of buffers for copies of tokens.
    """

    axes: Mapping[str, Expression]
    replicable: frozenset[str] = frozenset()
    # Most tensors of a graph share their shape and layout with others.
    _parts: dict[tuple[str, tuple[str, ...]], Expression] = field(
        init=False, default_factory=dict, compare=False, repr=False
    )
    _elements: dict[tuple[tuple[str, ...], Layout], Expression] = field(
        init=False, default_factory=dict, compare=False, repr=False
    )

    def local(self, axis: str, cuts: tuple[str, ...]) -> Expression:
        """This rank's part of an axis that the mesh axes `cuts` partition."""
        if (axis, cuts) not in self._parts:
            self._parts[axis, cuts] = self._part(axis, cuts)
        return self._parts[axis, cuts]

    def _part(self, axis: str, cuts: tuple[str, ...]) -> Expression:
        size = self.axes[axis]
        if axis == KEYS and cuts == ("cp",) and ADDED in self.axes:  # ranks of cp share caches
            return dealt(size, symbol("SK"))
        for mesh_axis in cuts:
            size = size / symbol(mesh_axis)
        return largest(size, 1) if cuts and axis in self.replicable else size

    def shape(self, tensor: Tensor) -> tuple[Expression, ...]:
        """The global shape of a tensor."""
        return tuple(self.axes[axis] for axis in tensor.axes)

    def local_shape(self, tensor: Tensor, layout: Layout) -> tuple[Expression, ...]:
        """The shape of a rank's part of a tensor with this layout."""
        return tuple(self.local(axis, layout.cuts(axis)) for axis in tensor.axes)

    def elements(self, tensor: Tensor, layout: Layout) -> Expression:
        """The number of elements of a rank's part of a tensor with this layout."""
        key = tensor.axes, layout
        if key not in self._elements:
            whole = product(self.local_shape(tensor, layout))
            if "slots" in tensor.axes:
                whole = whole * _filled(layout, self.axes["experts"])
            elif TOKENS in tensor.axes:
                whole = whole * _sent(layout, self.axes, tensor.axes)
            self._elements[key] = whole
        return self._elements[key]

    def bytes(self, tensor: Tensor, layout: Layout) -> Expression:
        """The bytes of a rank's part of a tensor with this layout."""
        if tensor.dtype in PACKED:
            matrices = [self.local(axis, layout.cuts(axis)) for axis in tensor.axes if axis == "experts"]
            return PACKED[tensor.dtype].bytes(self.elements(tensor, layout), product(matrices))
        if tensor.dtype in BLOCKED:
            return BLOCKED[tensor.dtype](self.elements(tensor, layout))
        return self.elements(tensor, layout) * CLASS_BYTES[tensor.dtype]


@dataclass(frozen=True)
class Cost:
    """FLOPs, bytes and dimensions of one operation on one rank, as expressions.

    dims: `[batch,] m, n, k` of a matmul, or those of an attention; empty for other operations.
    """

    flops: Expression
    bytes_read: Expression
    bytes_written: Expression
    dims: tuple[Expression, ...]


def cost(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Cost:
    """The costs of an operation whose tensors have these layouts."""
    cuts: dict[str, tuple[str, ...]] = {}
    for tensor in (*op.inputs, *op.outputs):
        for axis in tensor.axes:
            cuts[axis] = cuts.get(axis) or layouts[tensor.name].cuts(axis)

    def size(axis: str) -> Expression:
        if axis == KEYS and op.operator.deals_keys():
            return sizes.axes[KEYS]
        return sizes.local(axis, cuts.get(axis, ()))

    if op.operator.inside:
        return Cost(number(0), number(0), number(0), ())
    inner = _inner_bytes(op, size, sizes, layouts)
    slotted = next((layouts[t.name] for t in (*op.inputs, *op.outputs) if "slots" in t.axes), None)
    return Cost(
        op.operator.flops(size) * (1 if slotted is None else _filled(slotted, sizes.axes["experts"])),
        _bytes_read(op, sizes, layouts) + inner[0],
        total(sizes.bytes(t, layouts[t.name]) for t in op.operator.writes(op.inputs, op.outputs)) + inner[1],
        _dims(op.operator, size, sizes),
    )


def _inner_bytes(
    op: Operation, size: Callable[[str], Expression], sizes: Sizes, layouts: Mapping[str, Layout]
) -> tuple[Expression, Expression]:
    """Bytes that kernels of an operation pass to each other."""
    if not isinstance(op.operator, Adafactor):
        return op.operator.inner_bytes(size)
    weight, width = op.inputs[0], CLASS_BYTES["grad"]
    read, written = op.operator.passes(sizes.elements(weight, layouts[weight.name]), size)
    return width * read, width * written


MEANS: Mapping[str, str] = {"batch": "mean_batch", QUERIES: "mean_queries", KEYS: "mean_keys"}
"""The axes of requests of one length that are as much work as those of a step of serving."""

_DECODES: Mapping[str, str] = {"batch": "decode_batch", QUERIES: "decode_queries", KEYS: "decode_keys"}


def request_axes(workflow: Workflow) -> dict[str, str]:
    """The axes of mean requests in a workflow that serves, with their symbols; none in others."""
    if not workflow.caches:
        return {}
    kinds = (MEANS, _DECODES) if workflow.mixes else (MEANS,)
    return {axis: axis for kind in kinds for axis in kind.values()}


def _dims(operator: Operator, size: Callable[[str], Expression], sizes: Sizes) -> tuple[Expression, ...]:
    """The dims of an operation, for mean requests if it runs over requests.

    Where a step mixes requests, an attention has further dims: batch, queries and keys of those with one new token.
    """

    def over(kind: Mapping[str, str]) -> tuple[Expression, ...]:
        means = {axis: sizes.axes[kind[axis]] for axis in operator.over_requests}
        return operator.dims(lambda axis: means.get(axis) or size(axis))

    if not operator.over_requests or MEANS[KEYS] not in sizes.axes:
        return operator.dims(size)
    dims = over(MEANS)
    if "batch" not in operator.over_requests or _DECODES[KEYS] not in sizes.axes:
        return dims
    head, *value = dims[5:]
    batch, _, _, queries, keys, *_ = over(_DECODES)
    return (*dims[:5], head, *(value or (head,)), batch, queries, keys)


def _bytes_read(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Expression:
    """The bytes of what an operation reads: of a sequence's keys those that any of its queries sees."""
    keys = op.operator.keys_read(sizes.axes.__getitem__)
    if keys is not sizes.axes[KEYS]:
        near = {KEYS: keys, BEFORE: keys - sizes.axes[QUERIES]}
        sizes = Sizes({**sizes.axes, **near}, sizes.replicable)
    axes = {tensor.name: tensor.axes for tensor in op.inputs}
    found = []
    for tensor in op.operator.reads(op.inputs, op.outputs):
        names = dict(zip(axes.get(tensor.name, tensor.axes), tensor.axes, strict=False))
        found.append(sizes.bytes(tensor, layouts[tensor.name].renamed(names)))
    return total(found)


# Bytes that an operator holds while it runs, in addition to its operands and results.
#
# They are those of PyTorch's own kernels where an operator consists of several (recorded runs show them): the loss with
# vocabulary-sized values, the gate of a gated feed-forward. A fused kernel has none.

Of = Callable[[Operation, Sizes, Mapping[str, Layout]], Expression]


def temporary(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Expression:
    """The most that an operation holds at once in addition to its operands and results: bytes on one rank.

    layouts: by name of a tensor, how ranks hold it.
    """
    rule = _RULES.get(type(op.operator))
    return number(0) if rule is None else rule(op, sizes, layouts)


def _several(cuts: tuple[str, ...]) -> Expression:
    """1 where several ranks share an axis, else 0."""
    return smallest(total(symbol(axis) - 1 for axis in cuts), 1)


def _loss_gradient(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Expression:
    """The gradient with respect to log-probabilities; over a partitioned vocabulary their exponentials, too."""
    (out,) = op.outputs
    return sizes.bytes(out, layouts[out.name]) * (1 + _several(layouts[out.name].cuts("vocab")))


def _exponentials(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Expression:
    """The exponentials that are summed; the loss of a whole vocabulary is one kernel."""
    (shifted,) = op.inputs
    return sizes.bytes(shifted, layouts[shifted.name]) * _several(layouts[shifted.name].cuts("vocab"))


def _gate_gradient(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Expression:
    """Three values of the gate's size: its sigmoid, the activation and its slope (backward of x·sigmoid(x))."""
    dy = op.inputs[0]
    return 3 * sizes.bytes(dy, layouts[dy.name])


def _norm(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Expression:
    """The scaled input in fp32; of an input in another format its copy in fp32, too."""
    x = op.inputs[0]
    copied = smallest(4 - CLASS_BYTES[x.dtype], 1)
    return sizes.elements(x, layouts[x.name]) * CLASS_BYTES["fp32"] * (1 + copied)


def _norm_gradient(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Expression:
    """Four values of the input's size in fp32 and a mean for each row, less the input's gradient, which they make.

    The four are the normalised input, the scaled gradient, its part along the input, and their difference.
    """
    (x, rstd), dx = (op.inputs[1], op.inputs[3]), op.outputs[0]
    wide = 4 * sizes.elements(x, layouts[x.name]) * CLASS_BYTES["fp32"]
    return wide + sizes.bytes(rstd, layouts[rstd.name]) - sizes.bytes(dx, layouts[dx.name])


def _gate(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Expression:
    """The activation of the gate, which is then multiplied."""
    (y,) = op.outputs
    return sizes.bytes(y, layouts[y.name])


def _as_first(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Expression:
    """A value of the first input's size: a square, or a product that is then summed."""
    x = op.inputs[0]
    return sizes.bytes(x, layouts[x.name])


def _as_values(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Expression:
    """The product of gradients and values of a token's choices, which is summed to the gradient of weights."""
    values = op.inputs[1]
    return sizes.bytes(values, layouts[values.name])


def _square_gradient(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Expression:
    """The gradient of the mean, as wide as the input, and the input to the power of one, and doubled."""
    x = op.inputs[1]
    return 3 * sizes.bytes(x, layouts[x.name])


def _ring_gradient(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Expression:
    """Bytes that one turn of a ring's backward holds, beyond the fp32 sums that it reads and those that it writes.

    From the second turn on (torch's `_templated_ring_attention_backward`) there are two moments, of which the larger
    counts. While the kernel runs: the sums of the turn before and the kernel's results of both turns; those of this one
    have half of a rank's rows. While the sums are sent, if half of the keys got gradients: the sums that came before,
    new ones of keys and values, and the results of the kernel. With three ranks or more keys are held three times;
    gathered keys have a packed copy.
    """
    step = op.operator
    if not isinstance(step, RingStepGradient) or step.back:
        return number(0)  # Transformer Engine adds in place
    q, of_keys = op.outputs[0], op.outputs[1]
    width = CLASS_BYTES[op.inputs[1].dtype]
    rows = sizes.elements(q, layouts[q.name]) * width
    keys = sizes.elements(of_keys, layouts[of_keys.name]) * width
    sums = sizes.bytes(of_keys, layouts[of_keys.name])
    packed = keys * (1 if step.gathered else smallest(symbol(step.axis) - 2, 1))
    if not step.balanced:
        return packed + sums + 2 * (rows + keys)
    running, sending = sums + rows + rows / 2 + 2 * keys, 2 * sums + rows + keys / 2
    return packed + largest(running, sending)


def _orthogonalisation(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Expression:
    """The matrix in bf16 of the step before, and two products of it with itself (`torch.optim.Muon`)."""
    (matrix,) = op.inputs
    step, layout = op.operator, layouts[matrix.name]
    if not isinstance(step, Orthogonalisation):
        return number(0)

    def size(axis: str) -> Expression:
        return sizes.local(axis, layout.cuts(axis))

    return CLASS_BYTES["bf16"] * (sizes.elements(matrix, layout) + step.grams(size))


_RULES: Mapping[type[Operator], Of] = {
    RingStepGradient: _ring_gradient,
    CrossEntropyGradient: _loss_gradient,
    SumExp: _exponentials,
    GateGradient: _gate_gradient,
    Gate: _gate,
    MeanSquare: _as_first,
    MeanSquareGradient: _square_gradient,
    RMSNorm: _norm,
    RMSNormGradient: _norm_gradient,
    SumProduct: _as_first,
    WeightedSum: _as_first,
    WeightedSumGradient: _as_values,
    Orthogonalisation: _orthogonalisation,
}
