"""What autograd saves for the backward: the storages that its graph keeps, and the module that each belongs to."""

from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from scripts.recording.steps import Held
from scripts.recording.under_torch.observer import Observer, local


class Saved:
    """A context around a forward. Notes each storage that is saved inside, once."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.found: dict[Held, tuple[str, torch.Size, str, int]] = {}
        self.modules: list[str] = []
        self.on = False
        self.losses = 0

    def begin(self) -> None:
        """Note from now on."""
        self.found, self.on = {}, True

    def once(self) -> bool:
        """Whether this is the first loss of a step."""
        self.losses += 1
        return self.losses == 1

    def __enter__(self) -> None:
        self.hooks = saved_tensors_hooks(self.pack, lambda packed: packed)
        self.hooks.__enter__()

    def __exit__(self, *reason: Any) -> None:
        self.hooks.__exit__(*reason)

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note a tensor's storage.

        A result that its own operator saves is given back without its operator: they would hold each other where a
        split backward never runs the operator, and stay from step to step.
        """
        if self.on:
            own = local(tensor)
            held = self.observer.storage(own)
            where = self.modules[-1] if self.modules else "loss"
            self.found.setdefault(held, (where, own.shape, str(own.dtype).removeprefix("torch."), held.size))
        return tensor if tensor.grad_fn is None else tensor.detach()

    def summary(self, models: list[nn.Module]) -> dict[str, Any]:
        """Bytes that the forward saved, those of the middle layer, and of what is outside layers."""
        kept = {held: found for held, found in self.found.items() if held.category not in NOT_SAVED}
        layers = [name for model in models for name in model.layers]
        middle = layers[len(layers) // 2] if layers else None
        detail: list[list[Any]] = []
        outside: dict[str, int] = {}
        sums = dict.fromkeys(layers, 0)
        for where, shape, dtype, size in kept.values():
            parts = where.split(".")
            if parts[0] == "layers" and len(parts) > 2:
                sums[parts[1]] += size
                if parts[1] == middle:
                    detail.append([".".join(parts[2:]), list(shape), dtype, size])
            else:
                name = "between_layers" if parts[0] in ("layers", "") else parts[0]
                outside[name] = outside.get(name, 0) + size
        return {
            "total": sum(size for *_, size in kept.values()),
            "one_layer": sums[middle] if middle is not None else None,
            "layers_equal": len(set(sums.values())) < 2,
            "layer_index": int(middle) if middle is not None else None,
            "outside_layers": outside,
            "one_layer_detail": detail,
        }

    def watch(self, model: nn.Module) -> None:
        """Follow which module of a model runs."""
        for name, module in model.named_modules():
            module.register_forward_pre_hook(lambda *_, name=name: self.modules.append(name))
            module.register_forward_hook(lambda *_: self.left(), always_call=True)

    def left(self) -> None:
        """A module's forward is over."""
        self.modules.pop()


NOT_SAVED = ("param", "input_and_buffer", "fsdp_unsharded_param")
