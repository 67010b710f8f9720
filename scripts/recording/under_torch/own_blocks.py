"""The own blocks of the tests as a person writes them in PyTorch: results and gradients, for `tests/models/own_blocks`.

    python -m scripts.recording.under_torch.own_blocks > tests/models/own_blocks.json

Inputs and weights have the values of `scripts.recording.drawn_values`. A tensor is recorded by its norm and by its
products with probes.
"""

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from scripts.recording.drawn_values import drawn, probe

SIZES = {"batch": 2, "seq": 8, "hidden": 16, "ffn": 24, "heads": 4, "head_dim": 4}
PROBES = 2
EPSILON = 1e-5

Weights = Mapping[str, Any]


def low_rank(x: Any, w: Weights) -> Any:
    low = functional.rms_norm(functional.linear(x, w["down"]), (6,), w["normal"], EPSILON)
    gate, up = functional.linear(low, w["gate_up"]), functional.linear(low, w["up"])
    return functional.linear(functional.silu(gate) * up, w["back"])


def two_gates(x: Any, w: Weights) -> Any:
    gated = functional.gelu(functional.linear(x, w["w1"])) * functional.linear(x, w["w3"])
    both = gated * torch.sigmoid(functional.linear(x, w["w2"], w["bias"]))
    return functional.linear(2 * torch.tanh(both / 2), w["back"])


def adapter(x: Any, w: Weights) -> Any:
    low = functional.relu(functional.linear(x, w["down"], w["shift"])) ** 2
    return functional.linear(low, w["up"]) / 2 + x


def heads(x: Any, w: Weights) -> Any:
    q, k, v = (functional.linear(x, w[name].flatten(0, 1)).unflatten(-1, (4, 4)) for name in ("wq", "wk", "wv"))
    q = functional.rms_norm(q, (4,), eps=EPSILON) * w["tilt"]
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    context = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.5)
    return functional.linear(context.transpose(1, 2).flatten(2), w["wo"].flatten(1))


def crossed(x: Any, w: Weights) -> Any:
    shares = functional.softmax(functional.linear(x, w["w1"]), -1) * w["slope"]
    both = functional.linear(shares, w["w2"]) * functional.linear(x, w["w3"])
    return functional.linear(functional.rms_norm(both, (8,), w["normal"], EPSILON), w["w4"])


BLOCKS: Mapping[str, tuple[Callable[[Any, Weights], Any], Mapping[str, tuple[int, ...]]]] = {
    "low_rank": (low_rank, {"down": (6, 16), "normal": (6,), "gate_up": (24, 6), "up": (24, 6), "back": (16, 24)}),
    "two_gates": (
        two_gates,
        {"w1": (24, 16), "w2": (24, 16), "w3": (24, 16), "bias": (24,), "back": (16, 24)},
    ),
    "adapter": (adapter, {"down": (4, 16), "shift": (4,), "up": (16, 4)}),
    "heads": (
        heads,
        {"wq": (4, 4, 16), "wk": (4, 4, 16), "wv": (4, 4, 16), "wo": (16, 4, 4), "tilt": (4,)},
    ),
    "crossed": (
        crossed,
        {"w1": (12, 16), "slope": (12,), "w2": (8, 12), "w3": (8, 16), "normal": (8,), "w4": (16, 8)},
    ),
}
"""By name: the block, and the shapes of its weights. `normal` is the weight of a norm."""


def record(name: str) -> dict[str, Any]:
    """The result of a block, and the gradients of its input and weights, by name."""
    block, shapes = BLOCKS[name]
    stream = (SIZES["batch"], SIZES["seq"], SIZES["hidden"])
    x = torch.tensor(drawn("input", stream), requires_grad=True)
    weights = {each: torch.tensor(drawn(each, shape), requires_grad=True) for each, shape in shapes.items()}
    made = block(x, weights)
    made.backward(torch.tensor(drawn("arriving", stream)))
    found = {"output": made, "input": x.grad, **{each: weight.grad for each, weight in weights.items()}}
    return {each: _recorded(each, value) for each, value in found.items()}


def _recorded(name: str, value: Any) -> dict[str, Any]:
    probes = [
        float((value.detach() * torch.tensor(probe(name, tuple(value.shape), turn))).sum()) for turn in range(PROBES)
    ]
    return {"shape": list(value.shape), "norm": float(value.detach().norm()), "probes": probes}


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    json.dump({name: record(name) for name in BLOCKS}, sys.stdout, indent=1)
    sys.stdout.write("\n")
