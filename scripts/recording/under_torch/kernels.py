"""Functions that keep for the backward what fused kernels keep: only inputs and small statistics."""

from typing import Any

import torch
from torch.nn import functional


class FusedRMSNorm(torch.autograd.Function):
    """RMSNorm in fp32 that keeps its input and the reciprocal of the root mean square."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        wide = x.float()
        scale = (wide.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(x, scale, weight)
        return (wide * scale).to(x.dtype) * weight

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, scale, weight = ctx.saved_tensors
        wide = gradient.float()
        normed = x.float() * scale
        of_weight = (wide * normed).sum(tuple(range(x.ndim - 1))).to(weight.dtype)
        wide = wide * weight.float()
        mean = (wide * normed).mean(-1, keepdim=True)
        return ((wide - normed * mean) * scale).to(x.dtype), of_weight, None


class FusedSwiGLU(torch.autograd.Function):
    """silu(gate) * up that keeps gate and up."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        return functional.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate, up = ctx.saved_tensors
        sigmoid = torch.sigmoid(gate)
        silu = gate * sigmoid
        return gradient * up * (sigmoid + silu * (1 - sigmoid)), gradient * silu


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, fused: bool) -> torch.Tensor:
    """RMSNorm over the last dimension."""
    if fused:
        return FusedRMSNorm.apply(x, weight, eps)
    return functional.rms_norm(x, (x.shape[-1],), weight, eps)


def swiglu(gate: torch.Tensor, up: torch.Tensor, fused: bool) -> torch.Tensor:
    """The gated activation of llama's feed-forward layers."""
    return FusedSwiGLU.apply(gate, up) if fused else functional.silu(gate) * up


def dropped(x: torch.Tensor, share: float) -> torch.Tensor:
    """Dropout that keeps a mask of one byte an element, as accelerators do; the tensor itself where there is none."""
    return torch.ops.aten.native_dropout(x, share, True)[0] if share else x
