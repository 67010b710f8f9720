"""Blocks other than the usual attention: latent attention, sinks, windows, norms around parts, parallel parts.

`config["block"]` describes them; `block_configurations.py` has its words. The tensor-parallel plans are those of
torchtitan 0.3.0: `models/qwen3/sharding.py` (norms of queries and keys run on the heads of a rank),
`models/gpt_oss/sharding.py` and `model.py` (sinks are cut by heads and rescale the kernel's result by its log-sum-exp),
`models/deepseek_v3/sharding.py` and `model.py` (weights that make latents are whole on each rank, the others are cut by
heads). Its modules run on distributed tensors, and so do those of latent attention here. Layers that predict further
tokens are those of August 2026 (`models/deepseek_v3/mtp.py`). The experts with biases are those of
`models/gpt_oss/moe.py`, gated attention that of `models/qwen3_5/model.py` and `sharding.py`. Chunks have the plan of
torchtitan's former Llama 4 (`models/llama4/infra/parallelize.py`, commit 05a6cb3895a5), which is the usual one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, SequenceParallel

from scripts.recording.under_torch.block_kernels import ClampedGate, FusedAttention, KernelNorm
from scripts.recording.under_torch.experts import Experts
from scripts.recording.under_torch.model import Attention, Context, Layer, Model, Routed, Tables, loss_of, norm
from scripts.recording.under_torch.parallel import InParts
from scripts.recording.under_torch.scans import GatedDelta
from scripts.recording.under_torch.training import Job, default, tables


class KernelRMSNorm(nn.Module):
    """RMSNorm as PyTorch's own fused kernel, whose gradient distributed tensors know as one operator."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = KernelNorm.apply(x, self.weight, 1e-5)
        return found


class Sinks(nn.Module):
    """A learned score of each head without a value, which makes its context smaller."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(heads))

    def forward(self, context: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        scores = self.weight
        if isinstance(scores, DTensor):
            scores = scores.to_local(grad_placements=scores.placements)
        share = torch.sigmoid(lse.transpose(1, 2) - scores)
        return context * share.unsqueeze(-1).to(context.dtype)


class BlockAttention(Attention):
    """Attention with a window, sinks, and the norms of queries and keys of its base.

    A bound and distances of scores are in the kernel (FlexAttention). A query sees as many keys of a chunk as of a
    window.
    """

    def __init__(self, context: Context, place: int) -> None:
        super().__init__(context)
        block = context.config["block"]
        reaches = block.get("windows") or block.get("chunks") or [0]
        self.window = reaches[place % len(reaches)]
        self.turns = not block.get("alibi") and bool(self.window or not block.get("chunks"))
        self.usual = not self.window and not any(block.get(word) for word in ("sinks", "softcap", "alibi"))
        if block.get("gated"):
            self.wq = nn.Linear(context.config["hidden"], 2 * context.config["heads"] * self.size, bias=False)
        if block.get("sinks"):
            # torchtitan's are a parameter of the attention itself, which come before those of its modules.
            others = dict(self._modules)
            self._modules.clear()
            self.sinks = Sinks(context.config["heads"])
            self._modules.update(others)

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        return super().rotated(x) if self.turns else x

    def gated(self, x: torch.Tensor) -> torch.Tensor:
        """A head's queries are the first half of what its weight makes, and the gates of its result the second."""
        made = self.wq(x)
        q, gates = made.view(*made.shape[:2], -1, 2 * self.size).chunk(2, -1)
        k, v = (each.view(*each.shape[:2], -1, self.size) for each in (self.wk(x), self.wv(x)))
        if self.context.config.get("qk_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        context, _ = FusedAttention.apply(self.rotated(q), self.rotated(k), v, 0)
        out: torch.Tensor = self.wo((context * torch.sigmoid(gates)).flatten(2))
        return out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.context.config["block"].get("gated"):
            return self.gated(x)
        if self.usual:
            return super().forward(x)
        context, lse = FusedAttention.apply(*self.projected(x), self.window)
        if hasattr(self, "sinks"):
            context = self.sinks(context, lse)
        out: torch.Tensor = self.wo(context.flatten(2))
        return out


class ScoredExperts(Routed):
    """Experts behind a router that scores all of them by a sigmoid, in fp32, and chooses by score and bias."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.scale = context.config["block"].get("routing_scale", 1.0)

    def weighed(self, x: torch.Tensor) -> torch.Tensor:
        scores = torch.sigmoid(self.router(x).float())
        # The bias is a buffer, and has no gradient.
        chosen = scores.detach().topk(self.context.config["topk"], -1).indices
        best = scores.gather(-1, chosen)
        return best / best.sum(-1, keepdim=True) * self.scale


class BiasedExperts(Experts):
    """Experts with biases, added to the results of their matmuls, behind gpt-oss's gate."""

    def __init__(self, config: Mapping[str, Any], group: Any) -> None:
        super().__init__(config, group)
        own, _, size = self.w1.shape
        self.b1, self.b3 = (nn.Parameter(torch.empty(own, size)) for _ in range(2))
        self.b2 = nn.Parameter(torch.empty(own, config["hidden"]))

    def computed(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = (torch.bmm(x, w) + b.unsqueeze(1) for w, b in ((self.w1, self.b1), (self.w3, self.b3)))
        return torch.bmm(ClampedGate.apply(gate, up), self.w2) + self.b2.unsqueeze(1)


class BiasedRouted(Routed):
    """Such experts behind a router with a bias."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.router = nn.Linear(context.config["hidden"], context.config["experts"])
        self.experts = BiasedExperts(context.config, context.expert_group)


class LatentAttention(nn.Module):
    """Multi-head latent attention as it is trained."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        config, block = context.config, context.config["block"]
        self.context = context
        self.sizes = (block["nope_dim"], block["rope_dim"])
        self.value, self.rank = block["value_dim"], block["kv_rank"]
        hidden, heads, q_rank = config["hidden"], config["heads"], block.get("q_rank", 0)
        self.latent_queries = q_rank > 0
        if q_rank:
            self.wq_a = nn.Linear(hidden, q_rank, bias=False)
            self.q_norm = KernelRMSNorm(q_rank)
        self.wq = nn.Linear(q_rank or hidden, heads * sum(self.sizes), bias=False)
        self.wkv_a = nn.Linear(hidden, self.rank + self.sizes[1], bias=False)
        self.kv_norm = KernelRMSNorm(self.rank)
        self.wkv_b = nn.Linear(self.rank, heads * (self.sizes[0] + self.value), bias=False)
        self.wo = nn.Linear(heads * self.value, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape, rope = x.shape[:2], self.sizes[1]
        q = self.wq(self.q_norm(self.wq_a(x)) if self.latent_queries else x)
        apart, turning = q.view(*shape, -1, sum(self.sizes)).split(self.sizes, -1)
        latent, key = self.wkv_a(x).split([self.rank, rope], -1)
        turning, key = self.rotated(turning), self.rotated(key.unsqueeze(2))
        q = torch.cat([apart, turning], -1)
        both = self.wkv_b(self.kv_norm(latent)).view(*shape, -1, self.sizes[0] + self.value)
        own, v = both.split([self.sizes[0], self.value], -1)
        k = torch.cat([own, key.expand(-1, -1, own.size(2), -1)], -1)
        own_heads = (each.to_local() if isinstance(each, DTensor) else each for each in (q, k, v))
        context, _ = FusedAttention.apply(*own_heads, 0)
        out: torch.Tensor = self.wo(context.flatten(2))
        return out

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        """Rotary positions of the last dimension, whose halves turn by the angle of the row."""
        cos, sin = self.context.tables.cos, self.context.tables.sin
        if isinstance(x, DTensor):
            cos, sin = (DTensor.from_local(each, x.device_mesh, [Replicate()], run_check=False) for each in (cos, sin))
        one, two = x.chunk(2, -1)
        return torch.cat([one * cos - two * sin, one * sin + two * cos], -1)


class BlockLayer(Layer):
    """A layer with the mixer, and the norms and sums around its parts, of its configuration's block."""

    def __init__(self, context: Context, place: int, turn: int) -> None:
        super().__init__(context, place, turn)
        config = context.config
        block = config["block"]
        match block.get("mixer"):
            case "latent":
                self.attn = LatentAttention(context)
            case "gated_delta":
                self.attn = GatedDelta(context)
            case _:
                self.attn = BlockAttention(context, place)
        if isinstance(self.ffn, Routed) and (block.get("scores") or block.get("biased")):
            self.ffn = ScoredExperts(context) if block.get("scores") else BiasedRouted(context)
        self.residual = block.get("residual", "serial")
        if self.residual == "parallel":
            del self.ffn_norm
        if self.residual == "sandwich":
            self.attn_post_norm, self.ffn_post_norm = (norm(config, config["hidden"]) for _ in range(2))

    def block(self, x: torch.Tensor) -> torch.Tensor:
        if self.residual == "sandwich":
            x = x + self.attn_post_norm(self.attn(self.attn_norm(x)))
            return x + self.ffn_post_norm(self.ffn(self.ffn_norm(x)))
        if self.residual == "post_norm":
            x = x + self.attn_norm(self.attn(x))
            return x + self.ffn_norm(self.ffn(x))
        if self.residual == "parallel":
            normal = self.attn_norm(x)
            return self.attn(normal) + self.ffn(normal) + x
        return super().block(x)


class FurtherLayer(BlockLayer):
    """A layer that predicts a further token from a hidden state and the embedding of the token after it."""

    def __init__(self, context: Context, place: int, turn: int) -> None:
        super().__init__(context, place, turn)
        hidden = context.config["hidden"]
        layer = list(self._modules)
        self.embedding_norm, self.hidden_norm = (norm(context.config, hidden) for _ in range(2))
        self.projection = nn.Linear(2 * hidden, hidden, bias=False)
        # Parameters are in the order in which they are used, as those of the other layers here.
        for name in layer:
            self._modules[name] = self._modules.pop(name)
        self.norm = norm(context.config, hidden)

    def forward(self, x: torch.Tensor, ahead: torch.Tensor | None = None) -> torch.Tensor:
        if self.context.config["recompute"] == "full" and ahead is not None:
            return self.context.checkpointed(self.joined, x, ahead)
        return self.joined(x, x if ahead is None else ahead)

    def joined(self, x: torch.Tensor, ahead: torch.Tensor) -> torch.Tensor:
        """The normalised result of the layer."""
        both = torch.cat([self.embedding_norm(ahead), self.hidden_norm(x)], -1)
        found: torch.Tensor = self.norm(self.block(self.projection(both)))
        return found


class BlockModel(Model):
    """A model of such layers."""

    layer = BlockLayer

    def __init__(self, context: Context, layers: range, first: bool, last: bool) -> None:
        super().__init__(context, layers, first, last)
        places = range(len(layers), len(layers) + context.config["block"].get("further", 0))
        self.further = nn.ModuleList(FurtherLayer(context, place, place + 1) for place in places)

    @property
    def units(self) -> dict[str, nn.Module]:
        """Layers, and those of further tokens behind them (torchtitan's `apply_fsdp_to_mtp_decoder`)."""
        return super().units | {f"further.{depth}.": layer for depth, layer in enumerate(self.further)}

    def all(self, tokens: torch.Tensor, ahead: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The logits of the next token and of further ones. ahead: tokens at each position, from the next one on."""
        x = self.embed(tokens)
        for layer in self.layers.values():
            x = layer(x)
        made = [self.norm(x)]
        for layer, further in zip(self.further, ahead, strict=False):
            x = layer(x, self.embed(further))
            made.append(x)
        return [self.head(each) for each in made]

    def forward(self, x: torch.Tensor, labels: Sequence[torch.Tensor] | None = None) -> Any:
        if labels is not None:
            return self.all(x, labels)
        logits, cap = super().forward(x, labels), self.context.config["block"].get("logit_softcap")
        return torch.tanh(logits / cap) * cap if cap else logits

    def planned(self, plan: dict[str, ParallelStyle], config: Mapping[str, Any]) -> dict[str, ParallelStyle]:
        found = dict(plan)
        block = config["block"]
        for depth in range(len(self.further) if config["sp"] else 0):
            for word in ("embedding_norm", "hidden_norm", "projection", "norm"):
                found[f"further.{depth}.{word}"] = SequenceParallel(use_local_output=True)
        for layer in self.units:
            mixer = f"{layer}attn"
            after = {"sandwich": ("attn_post_norm", "ffn_post_norm"), "post_norm": ("attn_norm", "ffn_norm")}
            for word in after.get(block.get("residual", "serial"), ()) if config["sp"] else ():
                found[layer + word] = SequenceParallel(use_local_output=True)
            if block.get("mixer") == "gated_delta":
                for word in ("wq", "wk", "wv"):
                    del found[f"{mixer}.{word}"]
                for word in ("in_qkv", "in_z", "in_b", "in_a"):
                    found[f"{mixer}.{word}"] = ColwiseParallel(input_layouts=Replicate())
                found |= {f"{mixer}.core": InParts(dict.fromkeys(("conv", "a_log", "dt_bias"), 0))}
                found |= {f"{mixer}.gated_norm": InParts({})}
            elif block.get("mixer") == "latent":
                for word in ("wk", "wv"):
                    del found[f"{mixer}.{word}"]
                for word in ("wq", "wkv_b"):
                    found[f"{mixer}.{word}"] = ColwiseParallel(input_layouts=Replicate(), use_local_output=False)
                for word in ("wkv_a", "kv_norm", *(("wq_a", "q_norm") if block.get("q_rank") else ())):
                    found[f"{mixer}.{word}"] = Whole()
            elif config.get("qk_norm"):
                for word in ("q_norm", "k_norm"):
                    found[f"{mixer}.{word}"] = SequenceParallel(sequence_dim=2, use_local_output=True)
            if block.get("sinks"):
                found[f"{mixer}.sinks"] = ByHeads()
        return found


class Whole(ParallelStyle):
    """Weights that are whole on each rank, as distributed tensors."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh)


class ByHeads(ParallelStyle):
    """One weight, cut along its heads."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module.register_parameter("weight", nn.Parameter(distribute_tensor(module.weight, device_mesh, [Shard(0)])))
        return module


class BlockJob(Job):
    """A rank's step with a model of such layers."""

    def made(self) -> list[Model]:
        with default(self.dtype):
            model = BlockModel(self.context, range(self.config["layers"]), True, True)
        self.whole = sum(each.numel() for each in model.parameters())
        return [model]

    # The losses of all predictions. Their factor is no number that is compared.
    def loss(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if not self.config["block"].get("further"):
            return super().loss(tokens, labels)
        wanted = [labels, *(each[0] for each in self.tables.further)]
        logits = self.modules[0](tokens, wanted)
        first, *losses = [loss_of(each, right) for each, right in zip(logits, wanted, strict=True)]
        del logits
        return first + 0.1 * sum(losses[1:], losses[0]) / len(losses)

    def made_tables(self) -> Any:
        """Latent attention turns a part of a head."""
        size = self.config["block"].get("rope_dim") or self.config["head_dim"]
        found = tables({**self.config, "head_dim": size})
        if self.config["block"].get("further"):
            # Those of all micro-batches are there at once.
            shape = self.config["microbatches"], self.config["batch"], self.config["seq"]
            found.further = torch.zeros((self.config["block"]["further"], *shape), dtype=torch.int64)
        if self.config["block"].get("mixer") == "gated_delta":  # no positions, and no angles
            found = Tables(torch.zeros(0, dtype=torch.int64))
        if self.config["block"].get("alibi"):
            found.cos = found.sin = None
        return found
