"""Adapters and frozen weights of a recorded model: plain PyTorch, as torchtune's `LoRALinear` and peft have them."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

SCALE = 2.0


class Adapted(nn.Module):
    """A linear layer and, in addition, the product of two narrow ones, times a factor."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.lora_a = nn.Linear(base.in_features, rank, bias=False)
        self.lora_b = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.lora_b(self.lora_a(x)) * SCALE


def trained(model: Any, config: Mapping[str, Any]) -> Any:
    """The model with the adapters of a configuration, and without gradients of what it freezes."""
    targets, frozen = config.get("lora") or (), config.get("frozen") or ()
    for name, module in list(model.named_modules()):
        inside = in_layer(name)
        if targets and isinstance(module, nn.Linear) and inside is not None and under(inside, targets):
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, Adapted(module, config["lora_rank"]))
    for name, weight in model.named_parameters():
        if targets:
            weight.requires_grad_("lora_" in name)
        elif frozen and under(in_layer(name) or OUTSIDE[name.split(".")[0]], frozen):
            weight.requires_grad_(False)
    return model


OUTSIDE = {"embed": "embedding", "pos": "embedding", "norm": "head", "head": "head"}
"""The parts outside layers, as plans call them."""


def in_layer(name: str) -> str | None:
    """The name of a module inside its layer, None outside layers."""
    parts = name.split(".", 2)
    return parts[2] if parts[0] == "layers" and len(parts) > 2 else None


def under(name: str, parts: Any) -> bool:
    """Whether a name is one of these, or begins with one of them."""
    return any(f"{name}.".startswith(f"{part}.") for part in parts)
