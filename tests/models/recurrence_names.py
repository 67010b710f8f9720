"""Weights of RecurrentGemma's own code as those of a graph."""

import re

WORDS = {
    "linear_x": "attn.in_proj",
    "linear_y": "attn.gate",
    "linear_out": "attn.wo",
    "conv_1d": "attn.conv",
    "rg_lru.input_gate": "attn.input_gate",
    "rg_lru.recurrent_gate": "attn.decay_gate",
}
"""Modules of the recurrent block, and the operators that have their weight and bias."""

BLOCK = re.compile(r"temporal_block\.(?P<word>[\w.]+?)[._](?P<ending>weight|bias)$")


def recurrence_weight(part: str) -> str | None:
    """The weight of a layer that a parameter is; None if it is not one of a recurrent block."""
    if part == "temporal_block.rg_lru.recurrent_param":
        return "attn.rate"
    found = BLOCK.match(part)
    return f"{WORDS[found['word']]}.{found['ending']}" if found is not None and found["word"] in WORDS else None


def usual_name(part: str) -> str:
    """The usual name of a parameter of its attention or feed-forward."""
    return part.replace("temporal_block.", "self_attn.").replace("mlp_block.", "mlp.")
