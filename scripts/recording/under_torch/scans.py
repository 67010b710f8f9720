"""Mixers with a state: a short convolution, a scan over the sequence, and a gated norm, as kernels without values.

The gated delta rule has the plan of torchtitan's Qwen 3.5 (`models/qwen3_5/gdn.py` and `sharding.py`, commit
b5bcd76c66f5): weights in are cut by heads, as are those of the convolution and of each head, the weight of the norm is
whole, and the weight out is cut along what it reads. Its projections are those of the checkpoints (one matmul makes
queries, keys and values, by the groups of heads that share a key). Processors have none of these kernels: here they
give shapes, and keep for the backward what the kernels of fla and causal-conv1d read there.
"""

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Partial

from scripts.recording.under_torch.model import Context


@torch.library.custom_op("recording::convolve", mutates_args=())
def _convolved(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError("only shapes are recorded")


@_convolved.register_fake
def _(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("recording::delta_scan", mutates_args=())
def _scanned(
    qkv: torch.Tensor, b: torch.Tensor, a: torch.Tensor, held: list[torch.Tensor], value: int, chunk: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    raise NotImplementedError("only shapes are recorded")


@_scanned.register_fake
def _(
    qkv: torch.Tensor, b: torch.Tensor, a: torch.Tensor, held: list[torch.Tensor], value: int, chunk: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, heads = b.shape[:-1], b.shape[-1]
    made = qkv.new_empty((*rows, heads * value))
    return made, qkv.new_empty((*rows, heads), dtype=torch.float32), qkv.new_empty((*rows, heads, chunk))


@torch.library.custom_op("recording::gated_norm", mutates_args=())
def _normed(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    raise NotImplementedError("only shapes are recorded")


@_normed.register_fake
def _(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    heads = x.shape[-1] // weight.shape[-1]
    return torch.empty_like(x), x.new_empty((*x.shape[:-1], heads), dtype=torch.float32)


@torch.library.custom_op("recording::gradients", mutates_args=())
def _gradients(gradient: torch.Tensor, of: list[torch.Tensor], read: list[torch.Tensor]) -> list[torch.Tensor]:
    raise NotImplementedError("only shapes are recorded")


@_gradients.register_fake
def _(gradient: torch.Tensor, of: list[torch.Tensor], read: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.empty_like(each) for each in of]


_ops = torch.ops.recording


class Convolution(torch.autograd.Function):
    """Each channel convolved along the sequence, and silu: the backward reads the values before it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        found: torch.Tensor = _ops.convolve(x, weight)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(_ops.gradients(gradient, list(ctx.saved_tensors), []))


class DeltaRule(torch.autograd.Function):
    """The chunked scan: the backward reads its operands, the summed decays and each chunk's inverse."""

    @staticmethod
    def forward(ctx: Any, value: int, chunk: int, *operands: torch.Tensor) -> torch.Tensor:
        qkv, b, a, *held = operands
        found: torch.Tensor
        found, decay, inverse = _ops.delta_scan(qkv, b, a, held, value, chunk)
        ctx.save_for_backward(*operands, decay, inverse)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        *operands, decay, inverse = ctx.saved_tensors
        return None, None, *_ops.gradients(gradient, operands, [decay, inverse])


class GatedNorm(torch.autograd.Function):
    """The norm of each head, times silu of its gates."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor
        found, rstd = _ops.gated_norm(x, gate, weight)
        ctx.save_for_backward(x, gate, weight, rstd)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        *operands, rstd = ctx.saved_tensors
        return tuple(_ops.gradients(gradient, operands, [rstd]))


class OfHeads(nn.Module):
    """The weights of each head and channel, which ranks of tp divide."""

    def __init__(self, heads: int, channels: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Parameter(torch.empty(channels, width))
        self.a_log, self.dt_bias = (nn.Parameter(torch.empty(heads)) for _ in range(2))


class Scale(nn.Module):
    """The weight of a norm, whole on each rank."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))


class GatedDelta(nn.Module):
    """The mixer of Qwen 3.5's linear layers."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        block, hidden = context.config["block"], context.config["hidden"]
        heads, keys, self.value = block["delta_heads"], block["delta_key_heads"], block["delta_value_dim"]
        self.chunk = block["delta_chunk"]
        values = heads * self.value
        channels = 2 * keys * block["delta_key_dim"] + values
        self.in_qkv, self.in_z, self.in_b, self.in_a = (
            nn.Linear(hidden, rows, bias=False) for rows in (channels, values, heads, heads)
        )
        self.core = OfHeads(heads, channels, block["conv_width"])
        self.gated_norm = Scale(self.value)
        self.wo = nn.Linear(values, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made, gate, b, a = (each(x) for each in (self.in_qkv, self.in_z, self.in_b, self.in_a))
        conv, a_log, bias = (_own(each) for each in (self.core.conv, self.core.a_log, self.core.dt_bias))
        scanned = DeltaRule.apply(self.value, self.chunk, Convolution.apply(made, conv), b, a, a_log, bias)
        out: torch.Tensor = self.wo(GatedNorm.apply(scanned, gate, _own(self.gated_norm.weight, whole=True)))
        return out


def _own(weight: torch.Tensor, whole: bool = False) -> torch.Tensor:
    """This rank's part of a weight. whole: each rank has all of it, and a part of the sum of its gradient."""
    if not isinstance(weight, DTensor):
        return weight
    return weight.to_local(grad_placements=[Partial()] if whole else weight.placements)
