"""Numbers and sizes of heads, and the width of a feed-forward, that a layer kind has in place of the card's.

The axes of heads have a size of their own in the block of such a kind: `A_local` heads in the kind `local`, where
other blocks have `A`. So its operators, its layouts and its exchanges are those of other attention. In a block of all
layers an axis has one size, and axes with another one have a name of their own, such as `head_dim_256`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from stagedb.errors import UsageError
from stagedb.models.kinds.part import Architecture, Buffers, KindWord, LayerPart, Values

HEAD_WORDS: Mapping[str, KindWord] = {
    "heads": KindWord("the number of heads (0: the card's)", 0),
    "kv_heads": KindWord("the number of heads of keys and values (0: the card's)", 0),
    "head_dim": KindWord("the size of a head of queries and keys (0: the card's)", 0),
    "value_dim": KindWord("the size of a head of values (0: that of queries and keys)", 0),
}

_SYMBOLS = {"heads": "A", "kv_heads": "KV", "head_dim": "D", "value_dim": "DV", "ffn": "F"}
"""The symbol of each size in blocks without a size of their own."""


class KindOfLayer(Protocol):
    """The part of a layer kind that this module reads."""

    @property
    def name(self) -> str: ...
    @property
    def settings(self) -> Values: ...
    @property
    def parts(self) -> tuple[LayerPart, LayerPart]: ...


@dataclass(frozen=True)
class HeadSizes:
    """Heads of queries, heads of keys and values, the size of a head of queries and keys, and that of values."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int


def head_sizes(card: Architecture, values: Values) -> HeadSizes:
    """The heads of a layer kind with these values."""
    size = int(values.get("head_dim", 0)) or card.head_dim
    return HeadSizes(
        int(values.get("heads", 0)) or card.heads,
        int(values.get("kv_heads", 0)) or card.kv_heads,
        size,
        int(values.get("value_dim", 0)) or size,
    )


def check_head_sizes(card: Architecture, values: Values) -> None:
    """Raise UsageError for heads that do not suit each other."""
    made = head_sizes(card, values)
    if made.heads % made.kv_heads:
        raise UsageError(f"{card.name}: heads={made.heads} is not divisible by kv_heads={made.kv_heads}")
    if card.positions == "rotary" and values["rotary"] and made.head_dim % 2:
        raise UsageError(f"{card.name}: rotary positions want an even head_dim, not {made.head_dim}")
    for word in ("value_dim", "shared_values"):
        if values["gated"] and values[word]:
            raise UsageError(f"{card.name}: gated is for values of a size and a projection of their own: no {word}")
    if values["shared_values"] and made.value_dim != made.head_dim:
        raise UsageError(f"{card.name}: shared_values are keys: value_dim={made.value_dim} must be left out")


def _own_sizes(card: Architecture, kind: KindOfLayer) -> dict[str, int]:
    """The sizes of a kind that differ from the card's, by word."""
    mixer, channel_mixer = kind.parts
    heads = HEAD_WORDS if all(word in mixer.words for word in HEAD_WORDS) else ()
    words = (*heads, *(("ffn",) if "ffn" in channel_mixer.words else ()))
    given = {word: int(kind.settings[word]) for word in words}
    usual = {"heads": card.heads, "kv_heads": card.kv_heads, "head_dim": card.head_dim, "value_dim": 0, "ffn": card.ffn}
    return {word: size for word, size in given.items() if size not in (0, usual[word])}


def own_symbols(card: Architecture, kinds: Mapping[str, KindOfLayer]) -> dict[str, int]:
    """The symbols of a model's kinds with own sizes, such as `A_local`, with their values."""
    return {
        f"{_SYMBOLS[word]}_{kind.name}": size
        for kind in kinds.values()
        for word, size in _own_sizes(card, kind).items()
    }


def own_axes(card: Architecture, kind: KindOfLayer) -> dict[str, str]:
    """The axes in the block of a kind with other sizes than in other blocks, each with its size as a symbolic text."""
    words = _own_sizes(card, kind)
    if not words:
        return {}
    texts = {**kind.parts[1].axes, **kind.parts[0].axes, "value_dim": _SYMBOLS["value_dim"]}
    own = {_SYMBOLS[word]: f"{_SYMBOLS[word]}_{kind.name}" for word in words}
    made = {
        axis: re.sub(r"\b[A-Z]+\b", lambda found: own.get(found[0], found[0]), text) for axis, text in texts.items()
    }
    return {axis: text for axis, text in made.items() if text != texts[axis]}


def in_one_block(card: Architecture, kind: KindOfLayer) -> bool:
    """Whether a kind's own sizes are only those of heads and feed-forwards, so that it can be in one block with other
    kinds.
    """
    return {*_own_sizes(card, kind)} <= {"head_dim", "ffn"}


def names_in_stack(card: Architecture, kind: KindOfLayer) -> dict[str, str]:
    """The names that the axes of a kind with sizes of its own have in a block of all layers, by their usual names."""
    own = _own_sizes(card, kind)
    return {axis: f"{axis}_{own['ffn' if axis == 'ffn' else 'head_dim']}" for axis in own_axes(card, kind)}


def usual_name(axis: str) -> str:
    """The usual name of an axis that may have one of its own in a block of all layers."""
    return re.sub(r"_\d+\Z", "", axis)


def stack_axes(card: Architecture, kinds: Mapping[str, KindOfLayer]) -> dict[str, str]:
    """The axes whose sizes differ from kind to kind (`names_in_stack`), each with its size as a text of symbols.

    kinds: of layers, by name. Returns the sizes by the names that the axes have in a block of all layers.
    """
    return {
        name: own_axes(card, kind)[axis] for kind in kinds.values() for axis, name in names_in_stack(card, kind).items()
    }


def own_rotary(card: Architecture, kind: KindOfLayer, buffers: Buffers) -> Buffers:
    """The buffers of a kind. Rotary tables of heads of another size than the card's are tensors of their own."""
    size = _own_sizes(card, kind).get("head_dim")
    if size is None:
        return buffers
    named = {"head_dim": _rotary(size)}
    return tuple(
        (replace(held, name=f"{held.name}_{size}", axes=tuple(named.get(axis, axis) for axis in held.axes)), region)
        if "head_dim" in held.axes
        else (held, region)
        for held, region in buffers
    )


def rotary_axes(card: Architecture, kinds: Mapping[str, KindOfLayer]) -> dict[str, str]:
    """The axes of rotary tables for heads of another size than the card's, with their sizes as texts.

    kinds: of layers, by name.
    """
    sizes = (_own_sizes(card, kind).get("head_dim") for kind in kinds.values())
    return {_rotary(size): str(size) for size in sizes if size}


def _rotary(size: int) -> str:
    return f"head_dim_{size}"


def repeats_heads(card: Architecture, kind: KindOfLayer) -> bool:
    """Whether ranks may hold copies of the heads of keys and values: not where a kind has a number of its own."""
    return "kv_heads" not in _own_sizes(card, kind)


def sizes_like(sizes: Mapping[str, int], symbol: str) -> tuple[str, ...]:
    """A symbol, and the symbols that kinds with another size have in its place: `D`, `D_64`.

    sizes: by symbol.
    """
    return (symbol, *(name for name in sizes if name.startswith(f"{symbol}_")))
