"""The optimizer's step, represented by its costs: it reads gradients and its state and writes weights and its state."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from stagedb.ir.expressions import Expression, number, product, smallest, total
from stagedb.ir.operators._base import Array, Labels, Operator, RankPlace, Size

if TYPE_CHECKING:
    from stagedb.ir.tensors import Tensor


@dataclass(frozen=True)
class KeptState:
    """A state that an optimizer keeps of a weight: its word, its axes, and its dtype class."""

    word: str
    axes: Labels
    dtype: str = "opt"


@dataclass(frozen=True)
class Update(Operator):
    """It updates weights, or master copies from which the weights are written.

    states: the words of the states that it keeps for each weight, in the weight's shape. state_dtype: their dtype
    class. reads_gradients: its gradients are those of the backward; else an operator before has made something else of
    them.
    """

    kind: ClassVar[str] = "optimizer"
    states: ClassVar[tuple[str, ...]] = ()
    state_dtype: ClassVar[str] = "opt"
    reads_gradients: ClassVar[bool] = True

    def kept(self, axes: Labels) -> tuple[KeptState, ...]:
        """The states of a weight with these axes."""
        return tuple(KeptState(word, axes, self.state_dtype) for word in self.states)


@dataclass(frozen=True)
class AdamW(Update):
    """One fused step over all weights of a block (Loshchilov and Hutter 2019): two moments a weight."""

    states: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")


HOST_GRADIENT, HOST_WEIGHT, HOST_ACTIVATION = "host_gradient", "host_weight", "host_activation"
"""The roles of tensors in the memory of the host: gradients from the accelerator, weights that go back to it, and what
a layer keeps there for its backward."""

ON_HOST = frozenset({HOST_GRADIENT, HOST_WEIGHT, HOST_ACTIVATION})
GRADIENTS = ("gradient", HOST_GRADIENT)


@dataclass(frozen=True)
class HostAdamW(AdamW):
    """AdamW on the processor of the host, which has the states and master copies of a block (`HybridDeviceOptimizer`).

    Operands: the weights, which it does not touch, their gradients on the host, and the states. Results: the states,
    and the new weights, which are the master copies.
    """

    kind: ClassVar[str] = "host_optimizer"

    def writes(self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]) -> tuple["Tensor", ...]:
        return tuple(tensor for tensor in outputs if tensor.role not in ON_HOST)


@dataclass(frozen=True)
class ToHost(Operator):
    """A copy of a gradient, in fp32, or of an activation, to the host. Its bytes are those on the link."""

    kind: ClassVar[str] = "copy_to_host"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return inputs

    def reads(self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]) -> tuple["Tensor", ...]:
        return ()


@dataclass(frozen=True)
class FromHost(Operator):
    """A copy of a master weight, in fp32, or of an activation, to the accelerator. Its bytes are those on the link.

    PyTorch copies a weight first, and casts it on the accelerator (`copy_kernel_cuda` with `non_blocking`).
    """

    kind: ClassVar[str] = "copy_from_host"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return inputs

    def reads(self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]) -> tuple["Tensor", ...]:
        return ()


@dataclass(frozen=True)
class WriteWeight(Operator):
    """The cast of what came back into the weight. Operands: the weight, which it does not read, and the copy."""

    kind: ClassVar[str] = "cast"

    def reads(self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]) -> tuple["Tensor", ...]:
        return inputs[1:]


UPDATES = (Update.kind, HostAdamW.kind)
"""The kinds of operators that update weights."""

OFFLOADED = (HostAdamW, ToHost, FromHost, WriteWeight)
"""The operators of a step whose optimizer is on the host."""


@dataclass(frozen=True)
class SGD(Update):
    """One fused step of stochastic gradient descent over all weights of a block, without a state."""


@dataclass(frozen=True)
class MomentumSGD(SGD):
    """One fused step of stochastic gradient descent with momentum: its state is an average of gradients."""

    states: ClassVar[tuple[str, ...]] = ("momentum_buffer",)


@dataclass(frozen=True)
class BlockwiseAdamW(Update):
    """AdamW with moments in blocks of one byte a number (Dettmers et al. 2022): `bitsandbytes.optim.AdamW8bit`."""

    states: ClassVar[tuple[str, ...]] = ("state1", "state2")
    state_dtype: ClassVar[str] = "blocks"


@dataclass(frozen=True)
class EvenBlockwiseAdamW(Update):
    """AdamW with moments in blocks of one byte a number: `torchao.optim.AdamW8bit`, where only weights that fill their
    blocks have such moments.
    """

    states: ClassVar[tuple[str, ...]] = AdamW.states
    state_dtype: ClassVar[str] = "even_blocks"


@dataclass(frozen=True)
class Adafactor(Update):
    """`torch.optim.Adafactor` on one weight (Shazeer and Stern 2018), kernel by kernel, without weight decay.

    rows, columns: the axes of a matrix, whose means of squares over columns and over rows it keeps; without them a
    vector, of which it keeps the mean of squares. batch: the axes of many matrices.
    """

    rows: Labels = ()
    columns: Labels = ()
    batch: Labels = ()

    OF_MATRIX: ClassVar[tuple[str, str]] = ("row_var", "col_var")
    OF_VECTOR: ClassVar[str] = "variance"

    def kept(self, axes: Labels) -> tuple[KeptState, ...]:
        if not self.rows:
            return (KeptState(self.OF_VECTOR, axes, "grad"),)
        means = zip(self.OF_MATRIX, (self.rows, self.columns), strict=True)
        return tuple(KeptState(word, (*self.batch, *of), "grad") for word, of in means)

    def flops(self, size: Size) -> Expression:
        """Those of the matmul of a column of means with a row of them."""
        return 2 * self._numbers(size, self.rows, self.columns) if self.rows else number(0)

    def passes(self, numbers: Expression, size: Size) -> tuple[Expression, Expression]:
        """Numbers that its kernels read and write in addition to operands and results.

        numbers: how many the weight has. A matrix has these kernels: the weight's norm, the norms of rows and of
        columns, their squares, divided and averaged, a matmul of both, divided by the mean of rows, its least value,
        its root, the product with the gradient, the norm of that, and its sum with the weight. A vector has the squares
        of the gradient instead, their average, and a copy of it.
        """
        if not self.rows:
            return 10 * numbers, 5 * numbers
        many, rows, columns = (self._numbers(size, axes) for axes in ((), self.rows, self.columns))
        return 9 * numbers + 5 * rows + 4 * columns + 2 * many, 5 * numbers + 3 * rows + 3 * columns + 2 * many

    def _numbers(self, size: Size, *axes: Labels) -> Expression:
        return product(size(axis) for axis in (*self.batch, *(each for of in axes for each in of)))


@dataclass(frozen=True)
class Momentum(Operator):
    """The first operator of Muon: it adds a gradient to its average, and makes a matrix of both.

    Operands: the gradient, the average. Results: the matrix, the average.
    """

    kind: ClassVar[str] = "momentum"
    reads_gradients: ClassVar[bool] = True


PACKED = "packed"
"""The axis of a weight that has the heads of queries, a key and a value for each head of keys."""

STEPS = 5
"""Steps of an orthogonalisation (Jordan et al. 2024; `ns_steps` of `torch.optim.Muon`)."""


@dataclass(frozen=True)
class Orthogonalisation(Operator):
    """The second operator of Muon: matrices whose singular values are near 1, in bf16, by Newton-Schulz steps.

    A step of a matrix X of m rows and n columns, m not above n, is A = XXᵀ, B = bA + cAA, aX + BX; taller
    matrices are transposed before. rows, columns: the axes of a matrix. batch: those of many. split: rows with the
    axis `packed` are of queries, keys and values, and are three matrices.
    """

    rows: Labels
    columns: Labels
    batch: Labels = ()
    split: bool = False

    kind: ClassVar[str] = "orthogonalisation"
    computes_in: ClassVar[str] = "bf16"

    def _matrices(self, size: Size) -> list[tuple[Expression, Expression]]:
        """Rows and columns of each matrix. There may be a batch of matrices."""
        columns = product(size(axis) for axis in self.columns)
        if not self.split:
            return [(product(size(axis) for axis in self.rows), columns)]
        rest = product(size(axis) for axis in self.rows if axis != PACKED)
        return [(heads * rest, columns) for heads in (size(PACKED) - 2, number(1), number(1))]

    def _many(self, size: Size) -> Expression:
        return product(size(axis) for axis in self.batch)

    def flops(self, size: Size) -> Expression:
        def of(rows: Expression, columns: Expression) -> Expression:
            small = smallest(rows, columns)
            return 4 * small * rows * columns + 2 * small * small * small

        return STEPS * self._many(size) * total(of(*matrix) for matrix in self._matrices(size))

    def dims(self, size: Size) -> tuple[Expression, ...]:
        """How many matrices, then rows and columns of each kind of them."""
        return (self._many(size), *(each for matrix in self._matrices(size) for each in matrix))

    def inner_bytes(self, size: Size) -> tuple[Expression, Expression]:
        """Its kernels pass matrices to each other in bf16: one that narrows, two that scale to a norm of 1, and in each
        step three matmuls."""
        many, read, written = self._many(size), [], []
        for rows, columns in self._matrices(size):
            whole = rows * columns
            gram = smallest(rows, columns) * smallest(rows, columns)
            read.append(2 * whole + STEPS * (2 * whole + 2 * gram))
            written.append(whole + STEPS * (whole + 2 * gram))
        return 2 * many * total(read), 2 * many * total(written)

    def grams(self, size: Size) -> Expression:
        """Elements of the two products of the largest matrix with itself that it holds at once.

        They are of one matrix after the other: those of a batch are held together.
        """
        found = [smallest(rows, columns) for rows, columns in self._matrices(size)]
        return 2 * self._many(size) * found[0] * found[0]


@dataclass(frozen=True)
class MuonUpdate(Update):
    """The last operator of Muon: it updates one weight by its orthogonal matrix (Jordan et al. 2024)."""

    reads_gradients: ClassVar[bool] = False
