"""Sliding-window attention (Beltagy et al. 2020; Mistral 7B): a query sees the last `window` keys, its own included.
Chunked attention (Llama 4): it sees the keys before it in its own chunk.

Weights, keys and values in memory, and sharding are those of attention over the whole sequence. `attend` writes the
operators.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.models.kinds.attention import ATTENTION, attend
from stagedb.models.kinds.part import Architecture, Branch, KindWord, Values
from stagedb.models.sizes import MOST_TOKENS

if TYPE_CHECKING:
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models.shared_operations import Style


def _forward(t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor") -> Branch:
    return attend(t, card, style, x, values)


SLIDING_WINDOW = dataclasses.replace(
    ATTENTION,
    name="sliding_window",
    forward=_forward,
    words={
        **ATTENTION.words,
        "window": KindWord("the number of keys that a query sees, its own included", most=MOST_TOKENS),
    },
)

CHUNKED = dataclasses.replace(
    ATTENTION,
    name="chunked_attention",
    forward=_forward,
    words={
        **ATTENTION.words,
        "chunk": KindWord("the number of tokens of a chunk, whose keys alone a query sees", most=MOST_TOKENS),
    },
)

_TYPES = {"sliding_attention": True, "full_attention": False}
"""Whether layers of a type of Hugging Face's configs have a window."""


_NUMBERS = {"sliding_window": 1, "sliding_window_pattern": 1, "max_window_layers": 0}
"""The numbers of a Hugging Face config that describe windows, each with its smallest value."""


def read_windows(config: Mapping[str, Any], layers: int) -> tuple[bool, ...]:
    """Which layers of a Hugging Face config have its `sliding_window`.

    `layer_types` names the type of each layer. `sliding_window_pattern` N gives the layers N, 2N, … the whole sequence
    (Gemma 3). With `use_sliding_window` and `max_window_layers`, the window begins after that many layers (Qwen).
    Without any of them all layers have the window (Mistral). UsageError for types of other attention, for a window that
    is no number of keys, and if it is not clear which layers are meant.
    """
    window, used = config.get("sliding_window"), config.get("use_sliding_window") is not False
    types = config.get("layer_types")
    if types is not None:
        if not isinstance(types, list):
            raise UsageError(f"layer_types must be a list with a type for each layer, not {shown(types)}")
        unknown = [each for each in types if not isinstance(each, str) or each not in _TYPES]
        if unknown or len(types) != layers:
            what = shown(unknown[0]) if unknown else f"of {len(types)} layers, and there are {layers}"
            raise UsageError(f"layer_types {what} is not supported: {' and '.join(_TYPES)}, one for each layer")
        if any(_TYPES[each] for each in types) and not (window and used):
            raise UsageError(
                "layer_types has sliding_attention, and the config no window: set sliding_window to its number of keys "
                "(and use_sliding_window, if it has that), or make these layers full_attention"
            )
    if not used or window is None:
        return (False,) * layers
    for key in _NUMBERS:
        value = config.get(key)
        if value is not None and (type(value) is not int or value < _NUMBERS[key]):
            raise UsageError(f"{key} must be a whole number from {_NUMBERS[key]}, not {shown(value)}")
    if types is not None:
        return tuple(_TYPES[each] for each in types)
    if config.get("sliding_window_pattern") is not None:
        return tuple(number % config["sliding_window_pattern"] != 0 for number in range(1, layers + 1))
    if config.get("use_sliding_window"):
        if config.get("max_window_layers") is None:
            raise UsageError("use_sliding_window without layer_types or max_window_layers: which layers have a window?")
        return tuple(number >= config["max_window_layers"] for number in range(layers))
    return (True,) * layers
