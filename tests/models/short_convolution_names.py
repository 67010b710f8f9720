"""Weights of gated short convolutions of a model's own code as those of a graph, whose rows are by channels."""

import re
from collections.abc import Iterator

from stagedb.ir.operators import Array

SHORT = re.compile(r"^conv\.(?P<word>in_proj|conv|out_proj)\.(?P<ending>weight|bias)$")

WORDS = {"in_proj": "attn.in_proj", "conv": "attn.conv", "out_proj": "attn.wo"}


def short_convolution_weights(part: str, value: Array) -> Iterator[tuple[str, Array]]:
    """The weight of a block that a parameter is; none if it is of no short convolution."""
    found = SHORT.match(part)
    if found is None:
        return
    if found["word"] == "in_proj":
        # The gate before the convolution, the one behind it, and values, each with all channels.
        value = value.reshape(3, -1, *value.shape[1:]).swapaxes(0, 1)
    yield f"{WORDS[found['word']]}.{found['ending']}", value
