"""The interface of every operator: costs, gradient rule, and its meaning in numpy."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from stagedb.ir.expressions import Expression, number
from stagedb.ir.facts import KEYS, Tag
from stagedb.workflows.training import INPUT_GRADIENT

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer

Array = npt.NDArray[Any]
Labels = tuple[str, ...]
Size = Callable[[str], Expression]

QUERIES, BEFORE = "seq", "before"
"""The axes of a sequence's positions: those that a run computes, which have queries, and those before the first query,
which have keys alone. All that have keys are `KEYS`.

In training each position has a query and a key. In a step of decoding, or a chunk of a prefill, the last positions have
queries.
"""


@dataclass(frozen=True)
class RankPlace:
    """The part of each axis that a rank has while it runs an operator.

    sizes: global sizes. starts, lengths: first index and length of the local part. member: the rank's coordinates on
    the mesh; degrees: the sizes of those mesh axes. step: the turn of a loop, from 0. order: the token positions in the
    order in which ranks hold them; None if ranks hold contiguous parts. expert_load: of `sum(expert_load)` consecutive
    choices, how many go to each expert; empty: one each. leader: true on one of the ranks that hold shares of a partial
    result; it adds the values that must be added once. loss_share: the share of a micro-batch in the step's loss.
    before: the positions of a sequence before its first query, which has keys of its own. layer: the number of the
    layer in the model, from 0, for operators whose constants differ by it.
    """

    sizes: dict[str, int]
    starts: dict[str, int]
    lengths: dict[str, int]
    leader: bool = True
    member: Mapping[str, int] = field(default_factory=dict)
    step: int = 0
    order: Array | None = None
    expert_load: tuple[int, ...] = ()
    degrees: Mapping[str, int] = field(default_factory=dict)
    loss_share: float = 1.0
    before: int = 0
    layer: int = 0

    def positions(self, axis: str = QUERIES) -> Array:
        """The places in the sequence of this rank's part of its queries, or of its keys. axis: `QUERIES` or `KEYS`."""
        return self.indices(axis) + (self.before if axis == QUERIES else 0)

    def indices(self, axis: str) -> Array:
        """The global indices of this rank's part of an axis."""
        start = self.starts.get(axis, 0)
        here = np.arange(start, start + self.lengths[axis])
        return here if self.order is None or axis != QUERIES else self.order[here]


@dataclass(frozen=True)
class Operator:
    """A small frozen class an operator; fields are its parameters, all plain values.

    `linear`: passes partial sums on (the sum of shares is the share of the sum).
    `reduction`: the kind of partial result if a reduced axis is partitioned.
    `gradient_region`: the region whose rules its backward follows, if it is not the forward's.
    `sum_region`: the region in which gradients of its results are added, if it is not its own.
    `in_place`: the first output takes the storage of the first input, which nothing reads afterwards.
    `views`: the places of outputs, where there are so many, that are parts of the first input's storage, which they
    keep whole.
    `sum_tags`: the tags of those sums. `tags`: its tags in all its uses (`stagedb.ir.facts`).
    `deals`: each rank puts its values under other axes (tokens, slots of experts); nothing is summed over ranks, but
    over those that share one of the axes `sums_over`.
    `keeps_shares`: linear in its first input, so that it passes shares of that on where a region reduces late.
    `passes_shares`: it does so in any region.
    `inside`: it is done by the kernel of the communication next to it, so that its own bytes are none.
    `outputs_of_shares`: the places of outputs that are shares if only saved inputs are.
    `over_requests`: axes that its dims have from requests of one length, where those of a step differ.
    `alike`: why its queries and keys are of the same positions, so that no cache serves it; empty: there may be keys of
    further positions.
    `masks`: its kernel leaves out results that nothing wants, as those of norms do for frozen weights; others make them
    all. only: the places of the results that such a kernel makes; empty: all.
    `computes_in`: the class of formats of its FLOPs, if that is not its first operand's.
    `reads_gradients`: it is the optimizer's first operator, which reads the gradients as the backward made them.
    """

    only: tuple[int, ...] = field(default=(), kw_only=True)

    kind: ClassVar[str] = "elementwise"
    linear: ClassVar[bool] = False
    reduction: ClassVar[Literal["sum", "max"]] = "sum"
    gradient_region: ClassVar[str | None] = None
    sum_region: ClassVar[str | None] = None
    sum_tags: ClassVar[frozenset[Tag]] = frozenset()
    tags: ClassVar[frozenset[Tag]] = frozenset()
    in_place: ClassVar[bool] = False
    views: ClassVar[Sequence[int]] = ()
    deals: ClassVar[bool] = False
    sums_over: ClassVar[tuple[str, ...]] = ()
    keeps_shares: ClassVar[bool] = False
    passes_shares: ClassVar[bool] = False
    inside: ClassVar[bool] = False
    outputs_of_shares: ClassVar[tuple[int, ...]] = (0,)
    over_requests: ClassVar[tuple[str, ...]] = ()
    alike: ClassVar[str] = ""
    masks: ClassVar[bool] = False
    computes_in: ClassVar[str] = ""
    reads_gradients: ClassVar[bool] = False

    def labels(
        self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]
    ) -> tuple[tuple[Labels, ...], tuple[Labels, ...]]:
        """The names that this operator has for the axes of its operands and of its results: an axis may have two roles.

        Tensors of keys have the axis `seq`, of the positions that the run computes. An operator that reads them under
        another name (`kseq`) reads the keys of all positions. inputs, outputs: its operands and results, in order.
        Returns the names for the axes of each operand, then of each result.
        """
        return tuple(t.axes for t in inputs), tuple(t.axes for t in outputs)

    def operands(self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]) -> tuple["Tensor", ...]:
        """The inputs, with the axes that it reads: of keys those of all positions. outputs: its results, in order."""
        read, _ = self.labels(inputs, outputs)
        return tuple(with_keys(tensor, labels) for tensor, labels in zip(inputs, read, strict=True))

    def reads(self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]) -> tuple["Tensor", ...]:
        """What its kernel reads, as tensors with the axes of what is read. They have names of inputs or outputs."""
        return self.operands(inputs, outputs)

    def writes(self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]) -> tuple["Tensor", ...]:
        """What its kernel writes, as tensors with the axes of what is written. They have names of inputs or outputs."""
        return outputs

    def keys_kept(self, size: Size) -> Expression:
        """How many keys of a sequence a cache keeps for it: those that a later step may read."""
        return size(KEYS)

    def keys_read(self, size: Size) -> Expression:
        """How many keys of a sequence its kernel reads."""
        return size(KEYS)

    def deals_keys(self) -> bool:
        """Whether it works on the keys that a rank of cp has of a cache that these ranks share (`scored_pairs`).

        It then gets the number of keys of the whole sequence as their size, and takes its part itself.
        """
        return False

    def flops(self, size: Size) -> Expression:
        """FLOPs on one rank; matmul, attention, convolution and scan count, the rest counts 0."""
        return number(0)

    def inner_bytes(self, size: Size) -> tuple[Expression, Expression]:
        """Bytes that its kernels read and write in addition to operands and results: what they pass to each other."""
        return number(0), number(0)

    def present(self) -> Expression | None:
        """It exists if this is above 0; None: always."""
        return None

    def dims(self, size: Size) -> tuple[Expression, ...]:
        """Dimensions of a matmul (`[batch,] m, n, k`), an attention, a convolution or a scan; empty for the rest."""
        return ()

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        """Emit the backward of `op` in issue order; yield (index of the input, its gradient) contributions.

        grads: the gradient of each result of `op`, in order; None for a result that nothing differentiates. TypeError
        for an operator without a gradient.
        """
        raise TypeError(f"{type(self).__name__} has no gradient")

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        """The operator's meaning on one rank's arrays.

        place: which rank, with the sizes of its axes. inputs: the arrays of the operands, in order. Returns those of
        the results. TypeError for an operator without a meaning in numpy.
        """
        raise TypeError(f"{type(self).__name__} has no numpy meaning")


def with_keys(tensor: "Tensor", labels: Labels) -> "Tensor":
    """A tensor of keys with the sequence axis renamed as an operator reads it.

    labels: the operator's names for the tensor's axes, in order. An axis `seq` takes its label; the others keep their
    names.
    """
    axes = (label if axis == QUERIES else axis for axis, label in zip(tensor.axes, labels, strict=True))
    return replace(tensor, axes=tuple(axes))


def over(axis: str, axes: Labels) -> Labels:
    """These axes, where a sequence has the positions of another role: `QUERIES` or `KEYS`.

    axis: the role that the sequence gets.
    """
    return tuple(axis if each in (QUERIES, KEYS) else each for each in axes)


def arriving(grads: tuple["Tensor | None", ...]) -> "Tensor":
    """The gradient of an operator's first output, which its rule starts from.

    grads: the gradient of each result, in order. TypeError if the first one is None.
    """
    grad = grads[0]
    if grad is None:
        raise TypeError("an operator's backward was asked for without the gradient of its first output")
    return grad


def joined_gradient(
    tracer: "Tracer", op: "Operation", operator: Operator, grads: tuple["Tensor | None", ...]
) -> Iterator[tuple[int, "Tensor"]]:
    """The gradient of the input of an operation that splits it, by an operator that joins those of its results.

    op: the forward's operation. operator: the one that joins. grads: of the results of `op`; None: not differentiated.
    """
    grad = tracer.gradient(op.inputs[0], f"{op.name}.input_gradient")
    present = tuple(each for each in grads if each is not None)
    tracer.emit(grad.name, operator, present, grad, template=INPUT_GRADIENT)
    yield 0, grad


def fused_gradient(
    tracer: "Tracer", op: "Operation", operator: Operator, grads: tuple["Tensor | None", ...], to: tuple["Tensor", ...]
) -> Iterator[tuple[int, "Tensor"]]:
    """One operation for the gradients of all inputs `to`. It reads all that the forward read and wrote, and the
    gradients of further outputs where there are some.

    op: the forward's operation. operator: the one that makes the gradients. grads: of the results of `op`, in order.
    """
    name = f"{op.name}.input_gradient"
    made = [tracer.gradient(x, f"{name}.{i}") for i, x in enumerate(to)]
    reads = (arriving(grads), *op.inputs, *op.outputs, *(further for further in grads[1:] if further is not None))
    tracer.emit(name, operator, reads, *made, template=INPUT_GRADIENT)
    yield from enumerate(made)
