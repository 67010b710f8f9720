"""The optimizer's step, represented by its costs: it reads gradients and its state and writes weights and its state."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from stagedb.expressions import Expression, number, product, smallest, total
from stagedb.ir.operators._base import Labels, Operator, Size

if TYPE_CHECKING:
    from stagedb.ir.tensors import Tensor


@dataclass(frozen=True)
class Update(Operator):
    """It updates weights, or master copies from which the weights are written.

    states: the words of the states that it keeps for each weight, in the weight's shape. reads_gradients: its gradients
    are those of the backward; else an operator before has made something else of them.
    """

    kind: ClassVar[str] = "optimizer"
    states: ClassVar[tuple[str, ...]] = ()
    reads_gradients: ClassVar[bool] = True


@dataclass(frozen=True)
class AdamW(Update):
    """One fused step over all weights of a block (Loshchilov and Hutter 2019): two moments a weight."""

    states: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")


HOST_GRADIENT, HOST_WEIGHT = "host_gradient", "host_weight"
"""The roles of tensors in the memory of the host: gradients from the accelerator, and weights that go back to it."""

ON_HOST = frozenset({HOST_GRADIENT, HOST_WEIGHT})
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
    """A copy of a gradient to the memory of the host, in fp32. Its bytes are those on the link."""

    kind: ClassVar[str] = "copy_to_host"

    def reads(self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]) -> tuple["Tensor", ...]:
        return ()


@dataclass(frozen=True)
class FromHost(Operator):
    """A copy of a master weight to the accelerator, in fp32. Its bytes are those on the link.

    PyTorch copies first, and casts on the accelerator (`copy_kernel_cuda` with `non_blocking`).
    """

    kind: ClassVar[str] = "copy_from_host"

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
    """The same, with an average of gradients."""

    states: ClassVar[tuple[str, ...]] = ("momentum_buffer",)


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
        """Rows and columns of each matrix, of which there may be a batch."""
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
