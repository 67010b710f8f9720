"""Fused normalisation: the forward keeps its statistics (fp32, one a token), the backward makes dx and dw at once."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.operators._base import Array, Operator, RankPlace, arriving
from stagedb.workflows.training import INPUT_GRADIENT

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer


@dataclass(frozen=True)
class RMSNorm(Operator):
    """`y = x / rms(x) · weight` over the last axis (Zhang and Sennrich 2019); outputs y and 1/rms."""

    eps: float = 1e-5

    kind: ClassVar[str] = "norm"

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        dy = arriving(grads)
        x, weight = op.inputs
        dx = tracer.gradient(x, f"{op.name}.input_gradient")
        dw = tracer.gradient(weight, f"{op.name}.weight_gradient")
        reads = (dy, x, weight, op.outputs[1])
        tracer.emit(dx.name, RMSNormGradient(), reads, dx, dw, template=INPUT_GRADIENT)
        yield 0, dx
        yield 1, dw

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        x, weight = inputs
        rstd = 1 / np.sqrt((x**2).mean(axis=-1) + self.eps)
        return [x * rstd[..., None] * weight, rstd]


@dataclass(frozen=True)
class RMSNormGradient(Operator):
    """dx and dw of an RMSNorm from dy, x, weight and 1/rms."""

    kind: ClassVar[str] = "norm"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, x, weight, rstd = inputs
        normal = x * rstd[..., None]
        scaled = dy * weight
        dx = rstd[..., None] * (scaled - normal * (scaled * normal).mean(axis=-1, keepdims=True))
        return [dx, (dy * normal).sum(axis=tuple(range(dy.ndim - 1)))]


@dataclass(frozen=True)
class LayerNorm(Operator):
    """`y = (x - mean) / std · weight + bias` over the last axis; outputs y, mean and 1/std."""

    eps: float = 1e-5

    kind: ClassVar[str] = "norm"

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        dy = arriving(grads)
        x, weight, bias = op.inputs
        dx = tracer.gradient(x, f"{op.name}.input_gradient")
        dw = tracer.gradient(weight, f"{op.name}.weight_gradient")
        db = tracer.gradient(bias, f"{op.name}.bias_gradient")
        reads = (dy, x, weight, *op.outputs[1:])
        tracer.emit(dx.name, LayerNormGradient(), reads, dx, dw, db, template=INPUT_GRADIENT)
        yield 0, dx
        yield 1, dw
        yield 2, db

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        x, weight, bias = inputs
        mean = x.mean(axis=-1)
        rstd = 1 / np.sqrt(x.var(axis=-1) + self.eps)
        return [(x - mean[..., None]) * rstd[..., None] * weight + bias, mean, rstd]


@dataclass(frozen=True)
class LayerNormGradient(Operator):
    """dx, dw and db of a LayerNorm from dy, x, weight, mean and 1/std."""

    kind: ClassVar[str] = "norm"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, x, weight, mean, rstd = inputs
        normal = (x - mean[..., None]) * rstd[..., None]
        scaled = dy * weight
        centred = scaled - scaled.mean(axis=-1, keepdims=True)
        dx = rstd[..., None] * (centred - normal * (scaled * normal).mean(axis=-1, keepdims=True))
        return [dx, (dy * normal).sum(axis=(0, 1)), dy.sum(axis=(0, 1))]
