"""The cast of a matmul's operand to fp8 (Micikevicius et al. 2022): e4m3 for values, e5m2 for gradients."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from stagedb.ir.operators._base import Array, Operator, RankPlace, arriving

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer

E4M3, E5M2 = "fp8_e4m3", "fp8_e5m2"
"""Dtype classes of values and of gradients."""


@dataclass(frozen=True)
class Quantize(Operator):
    """A cast to fp8 with one scale a tensor. Its gradient is the tensor's own gradient, in the tensor's format.

    In numpy, which has no fp8, it is the identity.
    """

    kind: ClassVar[str] = "cast"

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        yield 0, arriving(grads)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [inputs[0]]
