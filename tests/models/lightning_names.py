"""Weights of lightning attention of a model's own code as those of a graph."""

from collections.abc import Mapping

from tests.semantics.stage import Key

WORDS = {"norm": "attn.scan_norm", "qkv_proj": "attn.in_qkv", "output_gate": "attn.wg", "out_proj": "attn.wo"}


def lightning_weight(part: str, shapes: Mapping[Key, tuple[int, ...]], key: Key) -> str:
    """The weight of a block that a parameter is; empty if its layer has no lightning attention."""
    block, place = key
    if not part.startswith("self_attn.") or (f"{block}.attn.in_qkv.weight", place) not in shapes:
        return ""
    return f"{WORDS[part.split('.')[1]]}.weight"
