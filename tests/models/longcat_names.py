"""Names of LongCat-Flash, whose layers have two of each part, as those of layers with one."""

import re
from collections.abc import Mapping
from typing import Any

from stagedb.ir.operators import Array

SECOND = "second."
"""The beginning of names of a layer's second half."""

NAMES = (
    (r"mlp\.router\.classifier\.", "mlp.gate."),
    (r"mlps\.[01]\.", "mlp."),
    (r"(self_attn|input_layernorm|post_attention_layernorm)\.[01]\.", r"\1."),
)

LAYER = re.compile(r"(?P<before>.*\.layers\.\d+\.)(?P<part>.*)")


def usual_half(name: str) -> str:
    """A parameter's name as that of a usual layer; of a second part, with `second.` before it in its layer."""
    match = LAYER.fullmatch(name)
    if match is None:
        return name
    part = match["part"]
    second = re.match(r"(mlps|self_attn|input_layernorm|post_attention_layernorm)\.1\.", part) is not None
    for pattern, usual in NAMES:
        part = re.sub(f"^{pattern}", usual, part)
    return f"{match['before']}{SECOND if second else ''}{part}"


def rows_read(name: str, value: Array, config: Mapping[str, Any]) -> Array:
    """The rows that code reads: the matrix of gates has some for zero experts too, which it never does."""
    return value[: config["n_routed_experts"]] if name.endswith("gate_up_proj") else value
