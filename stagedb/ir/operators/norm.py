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
    """`y = x / rms(x) · weight` over the last axis (Zhang and Sennrich 2019); outputs y and 1/rms.

    The weight has the last axis, or a row of it for each head.
    """

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
    masks: ClassVar[bool] = True

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, x, weight, rstd = inputs
        normal = x * rstd[..., None]
        scaled = dy * weight
        dx = rstd[..., None] * (scaled - normal * (scaled * normal).mean(axis=-1, keepdims=True))
        return [dx, (dy * normal).sum(axis=tuple(range(dy.ndim - weight.ndim)))]


@dataclass(frozen=True)
class UnitRMS(Operator):
    """`y = x / rms(x)` over the last axis, without a weight (Llama 4); outputs y and 1/rms.

    over: the last axes over which it is, if they are several.
    """

    eps: float = 1e-5
    over: tuple[str, ...] = ()

    kind: ClassVar[str] = "norm"

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        dx = tracer.gradient(op.inputs[0], f"{op.name}.input_gradient")
        reads = (arriving(grads), op.inputs[0], op.outputs[1])
        tracer.emit(dx.name, UnitRMSGradient(self.over), reads, dx, template=INPUT_GRADIENT)
        yield 0, dx

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        axes = tuple(range(-(len(self.over) or 1), 0))
        rstd = 1 / np.sqrt((inputs[0] ** 2).mean(axis=axes, keepdims=True) + self.eps)
        return [inputs[0] * rstd, rstd.squeeze(axes)]


@dataclass(frozen=True)
class UnitRMSGradient(Operator):
    """dx of a UnitRMS from dy, x and 1/rms."""

    over: tuple[str, ...] = ()

    kind: ClassVar[str] = "norm"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, x, rstd = inputs
        axes = tuple(range(-(len(self.over) or 1), 0))
        rstd = np.expand_dims(rstd, axes)
        normal = x * rstd
        return [rstd * (dy - normal * (dy * normal).mean(axis=axes, keepdims=True))]


@dataclass(frozen=True)
class LayerNorm(Operator):
    """`y = (x - mean) / std · weight + bias` over the last axis; outputs y, mean and 1/std. biased: it has a bias."""

    eps: float = 1e-5
    biased: bool = True

    kind: ClassVar[str] = "norm"

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        dy = arriving(grads)
        x, weight = op.inputs[:2]
        dx = tracer.gradient(x, f"{op.name}.input_gradient")
        made = [dx, tracer.gradient(weight, f"{op.name}.weight_gradient")]
        if self.biased:
            made.append(tracer.gradient(op.inputs[2], f"{op.name}.bias_gradient"))
        reads = (dy, x, weight, *op.outputs[1:])
        tracer.emit(dx.name, LayerNormGradient(self.biased), reads, *made, template=INPUT_GRADIENT)
        yield from enumerate(made)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        x, weight = inputs[:2]
        mean = x.mean(axis=-1)
        rstd = 1 / np.sqrt(x.var(axis=-1) + self.eps)
        y = (x - mean[..., None]) * rstd[..., None] * weight
        return [y + inputs[2] if self.biased else y, mean, rstd]


@dataclass(frozen=True)
class LayerNormGradient(Operator):
    """dx, dw and db of a LayerNorm from dy, x, weight, mean and 1/std."""

    biased: bool = True

    kind: ClassVar[str] = "norm"
    masks: ClassVar[bool] = True

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, x, weight, mean, rstd = inputs
        normal = (x - mean[..., None]) * rstd[..., None]
        scaled = dy * weight
        centred = scaled - scaled.mean(axis=-1, keepdims=True)
        dx = rstd[..., None] * (centred - normal * (scaled * normal).mean(axis=-1, keepdims=True))
        over = tuple(range(dy.ndim - weight.ndim))
        grads = [dx, (dy * normal).sum(axis=over)]
        return [*grads, dy.sum(axis=over)] if self.biased else grads


@dataclass(frozen=True)
class UnitLayerNorm(Operator):
    """`y = (x - mean) / deviation` over the last axis, without a weight (OLMo); outputs y, the mean and 1/deviation."""

    eps: float = 1e-5

    kind: ClassVar[str] = "norm"

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        dx = tracer.gradient(op.inputs[0], f"{op.name}.input_gradient")
        reads = (arriving(grads), op.inputs[0], *op.outputs[1:])
        tracer.emit(dx.name, UnitLayerNormGradient(), reads, dx, template=INPUT_GRADIENT)
        yield 0, dx

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        (x,) = inputs
        mean = x.mean(axis=-1)
        rstd = 1 / np.sqrt(x.var(axis=-1) + self.eps)
        return [(x - mean[..., None]) * rstd[..., None], mean, rstd]


@dataclass(frozen=True)
class UnitLayerNormGradient(Operator):
    """dx of a UnitLayerNorm from dy, x, the mean and 1/deviation."""

    kind: ClassVar[str] = "norm"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, x, mean, rstd = inputs
        normal = (x - mean[..., None]) * rstd[..., None]
        along = (dy * normal).mean(axis=-1, keepdims=True)
        return [rstd[..., None] * (dy - dy.mean(axis=-1, keepdims=True) - normal * along)]
