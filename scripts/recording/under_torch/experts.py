"""Experts as batched matmuls, spread over a group by all-to-alls."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed._functional_collectives as functional_collectives
from torch import nn
from torch.distributed.tensor import DTensor

from scripts.recording.under_torch.kernels import swiglu


class Experts(nn.Module):
    """The experts of this rank. Tokens come sorted by expert, as many for each.

    They are sorted here, and not by the caller: its call would hold the rows that are sent until the experts are done.
    """

    def __init__(self, config: Mapping[str, Any], group: Any) -> None:
        super().__init__()
        self.group, self.ranks = group, config["ep"]
        self.fused = config["ops"] == "fused"
        own, hidden = config["experts"] // self.ranks, config["hidden"]
        self.own = own
        size = config.get("expert_ffn") or config["ffn"]
        self.w1 = nn.Parameter(torch.empty(own, hidden, size))
        self.w3 = nn.Parameter(torch.empty(own, hidden, size))
        self.w2 = nn.Parameter(torch.empty(own, size, hidden))

    def forward(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """The results of these rows of [tokens, hidden]."""
        own, hidden = local(self.w1).shape[0], x.shape[-1]
        x = x.index_select(0, rows)
        if self.ranks == 1:
            return self.computed(x.view(own, -1, hidden)).view(-1, hidden)
        return self.combined(self.computed(self.dispatched(x)))

    def dispatched(self, x: torch.Tensor) -> torch.Tensor:
        """The rows of all ranks for the experts of this one: [experts, tokens, hidden]."""
        own, hidden = self.own, x.shape[-1]
        x = exchange(x, self.group).view(self.ranks, own, -1, hidden)
        return x.transpose(0, 1).reshape(own, -1, hidden)

    def combined(self, x: torch.Tensor) -> torch.Tensor:
        """The results for the rows of this rank."""
        own, hidden = self.own, x.shape[-1]
        x = x.view(own, self.ranks, -1, hidden).transpose(0, 1).reshape(-1, hidden)
        return exchange(x, self.group)

    def computed(self, x: torch.Tensor) -> torch.Tensor:
        """The feed-forward layer of each expert: [experts, tokens, hidden]."""
        gate, up, down = (local(each) for each in (self.w1, self.w3, self.w2))
        return torch.bmm(swiglu(torch.bmm(x, gate), torch.bmm(x, up), self.fused), down)


class ExchangingExperts(Experts):
    """The same, with exchanges in hooks of the module, as `distribute_module` registers those of torchtitan's
    `ExpertParallel`.

    A unit of FSDP2 that is made of it later has its own hooks around these.
    """

    def __init__(self, config: Mapping[str, Any], group: Any) -> None:
        super().__init__(config, group)
        if self.ranks > 1:
            self.register_forward_pre_hook(lambda _, given: (self.dispatched(given[0].index_select(0, given[1])), None))
            self.register_forward_hook(lambda _, given, result: self.combined(result))

    def forward(self, x: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
        """The results of these rows of [tokens, hidden], or of rows that have been exchanged."""
        return self.computed(x) if rows is None else super().forward(x, rows)


def local(weight: torch.Tensor) -> torch.Tensor:
    """This rank's part of a weight."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


def exchange(x: torch.Tensor, group: Any) -> torch.Tensor:
    """Equal parts of the rows to every rank of the group."""
    found = functional_collectives.all_to_all_single_autograd(x, None, None, group)
    return functional_collectives.wait_tensor(found)
