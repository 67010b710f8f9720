"""The optimizers of a recorded step, by the name of a configuration."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD, AdamW, Muon, Optimizer

from scripts.recording.under_torch.model import Model

Groups = list[dict[str, Any]]

MAKERS: Mapping[str, Callable[[Groups], Optimizer]] = {
    "adamw": lambda groups: AdamW(groups, fused=True),
    "sgd": lambda groups: SGD(groups, lr=1e-3, foreach=True),
    "sgd-momentum": lambda groups: SGD(groups, lr=1e-3, momentum=0.9, foreach=True),
}
"""Optimizers that update all weights alike."""


def optimizers(name: str, models: Sequence[Model]) -> list[Optimizer]:
    """The optimizers of this name, for all that is trained: Muon for the matrices of layers, and AdamW for the rest."""
    if name != "muon":
        return [MAKERS[name](groups(trained(models)))]
    weights = trained(models)
    in_layers = {id(each) for model in models for each in model.layers.parameters()}
    matrices = [each for each in weights if each.ndim == 2 and id(each) in in_layers]
    chosen = {id(each) for each in matrices}
    rest = groups([each for each in weights if id(each) not in chosen])
    return [Muon(matrices), *([MAKERS["adamw"](rest)] if rest else [])]


def state_of(optimizers: list[Optimizer], parameter: nn.Parameter) -> list[torch.Tensor]:
    """What the optimizers keep for a weight."""
    found = [each.state[parameter] for each in optimizers if parameter in each.state]
    return [value for state in found for value in state.values() if isinstance(value, torch.Tensor)]


def trained(models: Sequence[Model]) -> list[nn.Parameter]:
    """The weights that are trained, each once."""
    return [*{id(each): each for model in models for each in model.parameters() if each.requires_grad}.values()]


def groups(weights: list[nn.Parameter]) -> Groups:
    """Groups of parameters: an update of several tensors takes distributed ones or others."""
    kinds: dict[bool, list[nn.Parameter]] = {}
    for each in weights:
        kinds.setdefault(isinstance(each, DTensor), []).append(each)
    return [{"params": found} for found in kinds.values()]
