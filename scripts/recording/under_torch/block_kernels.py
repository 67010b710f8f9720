"""Attention kernels of accelerators as shapes: values with a size of their own, and windows.

PyTorch's processor backend has neither. `aten::_scaled_dot_product_cudnn_attention` has values of another size, and
`aten::_flash_attention_forward` windows; both give shapes on every device. Like the other kernels here, they keep for
the backward what the real ones keep, without the state of a random generator.
"""

from typing import Any

import torch
from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
from torch.distributed.tensor._ops._math_ops import rms_norm_bwd_single_dim_strategy, rms_norm_single_dim_strategy
from torch.distributed.tensor._ops.single_dim_strategy import register_single_dim_strategy

_aten = torch.ops.aten


class FusedAttention(torch.autograd.Function):
    """Causal attention of [batch, rows, heads, size] tensors: the context, and the log-sum-exp of each row.

    window: the keys that a query sees, its own included; 0: all before it. Values of another size take no window.
    """

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = q.shape[1]
        if q.shape[-1] == v.shape[-1]:
            reach = {"window_size_left": window - 1, "window_size_right": 0} if window else {}
            given = (None, None, rows, rows, 0.0, not window, False)
            context, lse, *_ = _aten._flash_attention_forward(q, k, v, *given, **reach)
        else:
            heads = (each.transpose(1, 2) for each in (q, k, v))
            context, lse, *_ = _aten._scaled_dot_product_cudnn_attention(*heads, None, True, 0.0, True)
            context = context.transpose(1, 2)
        ctx.save_for_backward(q, k, v, context, lse)
        ctx.window = window
        return context, lse

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, context, lse = ctx.saved_tensors
        rows = q.shape[1]
        state = torch.empty((), dtype=torch.int64)
        if q.shape[-1] == v.shape[-1]:
            given = (None, None, rows, rows, 0.0, not ctx.window, state, state)
            reach = {"window_size_left": ctx.window - 1, "window_size_right": 0} if ctx.window else {}
            found = _aten._flash_attention_backward(gradient, q, k, v, context, lse, *given, **reach)
            return *found, None
        heads = [each.transpose(1, 2) for each in (gradient, q, k, v, context)]
        masks = (state, state, None, None, None, rows, rows, 0.0, True)
        found = _aten._scaled_dot_product_cudnn_attention_backward(*heads, lse, *masks)
        return *(each.transpose(1, 2) for each in found), None


class ClampedGate(torch.autograd.Function):
    """gpt-oss's gate of bounded values, that keeps gate and up."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        low, wide = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
        return (wide + 1) * low * torch.sigmoid(1.702 * low)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate, up = ctx.saved_tensors
        low, wide = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
        share = torch.sigmoid(1.702 * low)
        slope = share * (1 + 1.702 * low * (1 - share))
        return gradient * (wide + 1) * slope * (gate <= 7.0), gradient * low * share * (up.abs() <= 7.0)


@torch.library.custom_op("recording::rms_norm", mutates_args=())
def _normed(x: torch.Tensor, size: list[int], weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    raise NotImplementedError("only shapes are recorded")


@_normed.register_fake
def _(x: torch.Tensor, size: list[int], weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), x.new_empty((*x.shape[: -len(size)], 1), dtype=torch.float32)


@torch.library.custom_op("recording::rms_norm_backward", mutates_args=())
def _normed_backward(
    gradient: torch.Tensor, x: torch.Tensor, size: list[int], rstd: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    raise NotImplementedError("only shapes are recorded")


@_normed_backward.register_fake
def _(
    gradient: torch.Tensor, x: torch.Tensor, size: list[int], rstd: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape), torch.empty_like(weight)


_ops = torch.ops.recording
register_single_dim_strategy([_ops.rms_norm.default], schema_info=RuntimeSchemaInfo(1))(rms_norm_single_dim_strategy)
register_single_dim_strategy([_ops.rms_norm_backward.default], schema_info=RuntimeSchemaInfo(2))(
    rms_norm_bwd_single_dim_strategy
)


class KernelNorm(torch.autograd.Function):
    """RMSNorm as `aten::_fused_rms_norm`, with its rules for distributed tensors. Processors have no such operator."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        found, rstd = _ops.rms_norm(x, list(weight.shape), weight, eps)
        ctx.save_for_backward(x, rstd, weight)
        result: torch.Tensor = found
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, rstd, weight = ctx.saved_tensors
        return *_ops.rms_norm_backward(gradient, x, list(weight.shape), rstd, weight), None
