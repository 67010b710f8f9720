"""Records what optimizers of PyTorch, bitsandbytes and torchao keep and compute: tests/memory/optimizer_states.json.

    python scripts/recording/under_torch/optimizer_states.py FILE

It needs torch, bitsandbytes and torchao, and no accelerator. The parameters are those of a small llama and of experts,
by name. For each optimizer the file has the bytes of its states by parameter and word, and those that all parameters
share. For Adafactor it has the FLOPs of a step; and of a step in fp32, for which kernels of a processor cast nothing,
the bytes that its operators read and write, and the most that it holds in addition.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

HIDDEN, FFN, VOCAB, KEYS, EXPERTS, EXPERT_FFN = 64, 99, 512, 32, 4, 24
LAYER = {
    "attn_norm": (HIDDEN,),
    "attn.wq": (HIDDEN, HIDDEN),
    "attn.wk": (KEYS, HIDDEN),
    "attn.wv": (KEYS, HIDDEN),
    "attn.wo": (HIDDEN, HIDDEN),
    "ffn_norm": (HIDDEN,),
    "ffn.gate": (FFN, HIDDEN),
    "ffn.up": (FFN, HIDDEN),
    "ffn.down": (HIDDEN, FFN),
}
SHAPES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "llama": {
        "embedding.word": (VOCAB, HIDDEN),
        **{f"layer.{number}.{name}": shape for number in range(2) for name, shape in LAYER.items()},
        "head.norm": (HIDDEN,),
        "head.out": (VOCAB, HIDDEN),
    },
    "experts": {
        "router": (EXPERTS, HIDDEN),
        "up": (EXPERTS, EXPERT_FFN, HIDDEN),
        "down": (EXPERTS, HIDDEN, EXPERT_FFN),
    },
}
VIEWS = ("view", "expand", "unsqueeze", "detach", "alias", "_reshape_alias", "squeeze", "_unsafe_view")
"""Operators that move nothing."""


def parameters(shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> dict[str, torch.nn.Parameter]:
    """Parameters with gradients."""
    found = {name: torch.nn.Parameter(torch.randn(shape).to(dtype)) for name, shape in shapes.items()}
    for each in found.values():
        each.grad = torch.randn(each.shape).to(dtype)
    return found


def size(tensor: Any) -> int:
    """Bytes of a tensor, or of the tensors that a state in blocks of torchao has."""
    if hasattr(tensor, "codes"):
        return sum(map(size, (tensor.codes, tensor.scale, tensor.qmap)))
    return int(tensor.numel() * tensor.element_size())


def with_states(name: str, given: Mapping[str, torch.nn.Parameter]) -> Any:
    """The optimizer, with all of its states."""
    every = list(given.values())
    if name == "adafactor":
        found = torch.optim.Adafactor(every)
        found.step()
        return found
    if name == "adamw-8bit-ao":
        from torchao.optim import AdamW8bit  # type: ignore[import-not-found]  # the recorder's environment alone has it

        torchao = AdamW8bit(every)
        for each in every:
            for word, signed in (("exp_avg", True), ("exp_avg_sq", False)):
                torchao.state[each][word] = torchao._new_buffer(each, signed)
        return torchao
    from bitsandbytes.optim import AdamW8bit as OfBytes  # type: ignore[import-not-found]  # the recorder's environment alone has it

    bytes_ = OfBytes(every)
    for number, group in enumerate(bytes_.param_groups):
        for place, each in enumerate(group["params"]):
            bytes_.init_state(group, each, number, place)
    return bytes_


class Moved(TorchDispatchMode):
    """Bytes of the operands and the results of operators that are no views."""

    read = written = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ not in VIEWS:
            self.read += sum(size(each) for each in args if isinstance(each, torch.Tensor))
            self.written += size(made) if isinstance(made, torch.Tensor) else 0
        return made


def held(optimizer: Any) -> int:
    """The most bytes that a step holds in addition to what is there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        optimizer.step()
    live = most = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            most = max(most, live)
    return most


def recorded(name: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """The row of an optimizer."""
    given = parameters(shapes, torch.bfloat16)
    optimizer = with_states(name, given)
    names = {id(each): word for word, each in given.items()}
    states: dict[str, dict[str, int]] = {}
    shared: dict[int, int] = {}
    for each, kept in optimizer.state.items():
        tensors = {word: value for word, value in kept.items() if torch.is_tensor(value) and word != "step"}
        shared |= {value.data_ptr(): size(value) for word, value in tensors.items() if word.startswith("qmap")}
        states[names[id(each)]] = {word: size(value) for word, value in tensors.items() if not word.startswith("qmap")}
    row: dict[str, Any] = {"states": states, "shared": sum(shared.values())}
    if name == "adafactor":
        with FlopCounterMode(display=False) as counter:
            optimizer.step()
        wide = with_states(name, parameters(shapes, torch.float32))
        with Moved() as moved:
            wide.step()
        row |= {"flops": counter.get_total_flops(), "read": moved.read, "written": moved.written, "held": held(wide)}
    return row


def main() -> None:
    """Write the file that the command line names."""
    found: dict[str, Any] = {"version": str(torch.__version__)}
    for name in ("adafactor", "adamw-8bit", "adamw-8bit-ao"):
        found[name] = {title: recorded(name, shapes) for title, shapes in SHAPES.items()}
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
