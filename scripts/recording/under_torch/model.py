"""The models of records: llama, gpt and moe blocks with the sizes and choices of a configuration."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from scripts.recording.under_torch.chunked_loss import whole_input
from scripts.recording.under_torch.context import ContextAttention
from scripts.recording.under_torch.experts import ExchangingExperts, Experts
from scripts.recording.under_torch.kernels import dropped, rms_norm, swiglu


@dataclass
class Tables:
    """Tensors that are no weights: positions, angles of rotary positions, the causal mask, the routing of tokens, the
    labels of a further token."""

    positions: torch.Tensor
    cos: Any = None
    sin: Any = None
    mask: Any = None
    routed: Any = None
    back: Any = None
    further: Any = None

    def tensors(self) -> list[torch.Tensor]:
        """All of them."""
        return [each for each in vars(self).values() if each is not None]


@dataclass
class Context:
    """What the layers share: the configuration, tables, and how parts are recomputed or sent."""

    config: Mapping[str, Any]
    tables: Tables
    recomputing: Any
    """Makes the pair of contexts in which a checkpoint runs its forward and its recomputation."""
    attention: ContextAttention | None = None
    expert_group: Any = None

    def checkpointed(self, function: Any, *given: torch.Tensor) -> torch.Tensor:
        """The result of a function whose tensors are made again in the backward."""
        early = bool(self.config["early_stop"])
        result: torch.Tensor = checkpoint(
            function, *given, use_reentrant=False, context_fn=self.recomputing, early_stop=early
        )
        return result


class RMSNorm(nn.Module):
    """RMSNorm with one weight."""

    def __init__(self, size: int, fused: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.fused = fused

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, 1e-5, self.fused)


def norm(config: Mapping[str, Any], size: int) -> nn.Module:
    """The normalisation of a style."""
    return nn.LayerNorm(size) if config["style"] == "gpt" else RMSNorm(size, config["ops"] == "fused")


class Attention(nn.Module):
    """Causal self-attention, with packed q, k, v in the gpt style and rotary positions in the others."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        config = context.config
        self.context, self.size = context, config["head_dim"]
        hidden, wide, narrow = config["hidden"], config["heads"] * self.size, config["kv_heads"] * self.size
        every = bool(config.get("all_bias"))
        some = every or bool(config.get("qkv_bias"))
        self.packed = config["style"] == "gpt"
        if self.packed:
            self.wqkv = nn.Linear(hidden, 3 * wide)
        else:
            self.wq, self.wk, self.wv = (nn.Linear(hidden, each, bias=some) for each in (wide, narrow, narrow))
            if config.get("qk_norm"):
                self.q_norm, self.k_norm = (RMSNorm(self.size, config["ops"] == "fused") for _ in range(2))
        self.wo = nn.Linear(wide, hidden, bias=self.packed or every)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (each.transpose(1, 2) for each in self.projected(x))
        core = self.math if self.context.config["attn"] == "math" else self.fused
        if self.context.config["recompute"] == "core":
            found = self.context.checkpointed(core, q, k, v)
        else:
            found = core(q, k, v)
        out = self.wo(found.transpose(1, 2).reshape(found.shape[0], found.shape[2], -1))
        return dropped(out, self.context.config["dropout"])

    def projected(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        """q, k, v as [batch, rows, heads, size]."""
        if self.packed:
            packed = self.wqkv(x)
            return packed.view(*packed.shape[:2], 3, -1, self.size).unbind(2)
        q, k, v = (each.view(*each.shape[:2], -1, self.size) for each in (self.wq(x), self.wk(x), self.wv(x)))
        if self.context.config.get("qk_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        return self.rotated(q), self.rotated(k), v

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        """Rotary positions: the halves of a head turn by the angle of the row."""
        cos, sin = self.context.tables.cos, self.context.tables.sin
        one, two = x.chunk(2, -1)
        return torch.cat([one * cos - two * sin, one * sin + two * cos], -1)

    def fused(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attention as one kernel, over all ranks of the context group if there is one."""
        if self.context.attention is not None:
            return self.context.attention(q, k, v)
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])

    def math(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attention as two matmuls."""
        config, copies = self.context.config, q.shape[1] // k.shape[1]
        if copies > 1:
            k, v = (each.repeat_interleave(copies, 1) for each in (k, v))
        scores = torch.matmul(q, k.transpose(-2, -1)) * (1 / math.sqrt(self.size))
        mask = self.context.tables.mask
        weights = functional.softmax(scores.masked_fill(mask, float("-inf")), -1)
        return torch.matmul(dropped(weights, config["dropout"]), v)


class FeedForward(nn.Module):
    """A gated feed-forward layer, or GELU between two linears in the gpt style."""

    def __init__(self, context: Context, size: int) -> None:
        super().__init__()
        config = context.config
        self.gated, self.fused = config["style"] != "gpt", config["ops"] == "fused"
        self.dropout = config["dropout"]
        bias = not self.gated or bool(config.get("all_bias"))
        self.w1 = nn.Linear(config["hidden"], size, bias=bias)
        if self.gated:
            self.w3 = nn.Linear(config["hidden"], size, bias=bias)
        self.w2 = nn.Linear(size, config["hidden"], bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.gated:
            return dropped(self.w2(swiglu(self.w1(x), self.w3(x), self.fused)), self.dropout)
        return dropped(self.w2(functional.gelu(self.w1(x))), self.dropout)


class Routed(nn.Module):
    """Experts behind a router, and experts that all tokens share."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        config = context.config
        self.context = context
        self.router = nn.Linear(config["hidden"], config["experts"], bias=False)
        self.experts = (ExchangingExperts if config.get("ep_fsdp") else Experts)(config, context.expert_group)
        if config.get("shared_ffn"):
            self.shared = FeedForward(context, config["shared_ffn"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if isinstance(x, DTensor):
            return self.partitioned(x)
        return self.mixed(x) + self.shared(x) if hasattr(self, "shared") else self.mixed(x)

    def mixed(self, x: torch.Tensor) -> torch.Tensor:
        """The weighted results of the chosen experts."""
        tables, chosen = self.context.tables, self.context.config["topk"]
        flat = x.reshape(-1, x.shape[-1])
        weights = self.weighed(flat).to(x.dtype)
        found = self.experts(flat, tables.routed // chosen).index_select(0, tables.back).view(-1, chosen, x.shape[-1])
        return (found * weights.unsqueeze(-1)).sum(1).view(x.shape)

    def partitioned(self, x: DTensor) -> torch.Tensor:
        """The same of tokens that all ranks of tp have, of parts of each expert: shares, and then their sum.

        Gradients of what is whole are shares too, as in torchtitan's `models/common/moe_sharding.py`.
        """
        shares = self.mixed(x.to_local(grad_placements=[Partial()]))
        found = DTensor.from_local(shares, x.device_mesh, [Partial()], run_check=False)
        found = found + self.shared(x) if hasattr(self, "shared") else found
        rows = Shard(1) if self.context.config["sp"] else Replicate()
        return found.redistribute(placements=[rows]).to_local()

    def weighed(self, x: torch.Tensor) -> torch.Tensor:
        """The weights of the chosen experts of [tokens, hidden], in fp32."""
        weight = self.router.weight
        whole = weight.to_local(grad_placements=[Partial()]) if isinstance(weight, DTensor) else weight
        scores, _ = functional.linear(x, whole).topk(self.context.config["topk"], -1)
        return functional.softmax(scores.float(), -1)


class Layer(nn.Module):
    """One block: attention and feed-forward, each behind a norm and around a residual.

    place: its number in the model. turn: its number on the stage, from 1, by which every K-th is recomputed.
    """

    def __init__(self, context: Context, place: int, turn: int) -> None:
        super().__init__()
        config = context.config
        self.context, self.turn = context, turn
        self.attn_norm = norm(config, config["hidden"])
        self.attn = Attention(context)
        self.ffn_norm = norm(config, config["hidden"])
        routed = config["style"] == "moe" and place >= config.get("dense_layers", 0)
        self.ffn = Routed(context) if routed else FeedForward(context, config["ffn"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        every = self.context.config.get("every", 1) or 1
        if self.context.config["recompute"] in ("full", "sac") and self.turn % every == 0:
            return self.context.checkpointed(self.block, x)
        return self.block(x)

    def block(self, x: torch.Tensor) -> torch.Tensor:
        """The layer itself."""
        x = x + self.attn(self.attn_norm(x))
        return x + self.ffn(self.ffn_norm(x))


class Entry(nn.Module):
    """What comes between the embedding and the first layer. Sequence parallelism cuts rows here, after dropout."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Model(nn.Module):
    """The layers of a chunk, with the embedding before them and norm and head behind them where they belong.

    before: the layers of the stage's chunks before it.
    """

    layer: type[Layer] = Layer

    def __init__(self, context: Context, layers: range, first: bool, last: bool, before: int = 0) -> None:
        super().__init__()
        config = context.config
        self.context = context
        if first:
            self.embed = nn.Embedding(config["vocab"], config["hidden"])
            if config["style"] == "gpt":
                self.pos = nn.Embedding(config["seq"], config["hidden"])
                self.entry = Entry()
        made = {str(place): self.layer(context, place, turn) for turn, place in enumerate(layers, before + 1)}
        self.layers = nn.ModuleDict(made)
        if last:
            self.norm = norm(config, config["hidden"])
            self.head = nn.Linear(config["hidden"], config["vocab"], bias=False)
            if config.get("tied") and first:
                self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        if hasattr(self, "embed"):
            x = self.embed(x)
            if hasattr(self, "pos"):
                x = x + self.pos(self.context.tables.positions)
                x = self.entry(dropped(x, self.context.config["dropout"]))
        for layer in self.layers.values():
            x = layer(x)
        if not hasattr(self, "head"):
            return x
        normal = self.norm(x)
        if self.context.config["loss_chunks"] > 1:
            return whole_input(normal, self.head)  # the loss has the head in it
        logits = self.head(normal)
        return logits if labels is None else loss_of(logits, labels)

    @property
    def units(self) -> dict[str, nn.Module]:
        """The layers by the beginning of their modules' names, in the order of their forwards."""
        return {f"layers.{place}.": layer for place, layer in self.layers.items()}

    def planned(self, plan: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
        """The tensor-parallel plan of this model, from the one of the usual layers."""
        return plan


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean cross entropy, in fp32."""
    return functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten(0, 1))
