"""Low-rank adapters (LoRA, Hu et al. 2021): two narrow matmuls whose product is added to a frozen linear layer's."""

from collections.abc import Sequence

ALL = "all"
"""Every linear layer, but those of routers and of routed experts."""

APART = ("ffn.experts", "ffn.router", "attn.experts", "attn.router")
"""What `ALL` leaves out: routers, and experts, of which each gets adapters of its own."""

ALIASES = {
    "q_proj": "attn.wq",
    "k_proj": "attn.wk",
    "v_proj": "attn.wv",
    "o_proj": "attn.wo",
    "gate_proj": "ffn.w1",
    "up_proj": "ffn.w3",
    "down_proj": "ffn.w2",
}
"""The linear layers of a Llama by the names of transformers, which adapters' `target_modules` use."""

SECOND = "second"
"""The part of a layer's block under whose name its second half is, if it has two (LongCat-Flash)."""

DOWN, UP = "lora_a", "lora_b"
"""The two weights, by the names of peft and torchtune."""

SCALE = 2.0
"""The factor of an adapter's result: alpha over the rank. No cost depends on it; twice the rank is a common alpha."""


def is_adapted(name: str, targets: Sequence[str]) -> bool:
    """Whether a linear layer has an adapter.

    name: its name inside its layer, such as `attn.wq`. targets: names, each with all under it, or `ALL`.
    """
    named = is_under(name, [target for target in targets if target != ALL])
    return named or (ALL in targets and not is_under(name, APART))


def is_under(name: str, operators: Sequence[str]) -> bool:
    """Whether a name inside a layer is one of these operators, or a part of one of them.

    Where a layer has two halves, a name without `second.` is that of both.
    """
    both = {name, name.removeprefix(f"{SECOND}.")}
    return any(f"{each}.".startswith(f"{operator}.") for each in both for operator in operators)


def is_adapter(name: str) -> bool:
    """Whether a weight of this name belongs to an adapter."""
    return name.endswith((f".{DOWN}.weight", f".{UP}.weight"))
