"""Models whose layers a search chose one by one (Llama-Nemotron Super and Ultra, DeciLM): heads of keys, and widths.

A config has an entry for each block of the model that the search began with: its attention and its feed-forward, either
of which may be gone. A block without both is no layer of the card.

Sources: `nemotron_nas.py` of vLLM, `modeling_nemotron_nas.py` of TensorRT-LLM.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.models.card import Card
from stagedb.models.kinds import Value
from stagedb.models.kinds.part import FAR
from stagedb.models.readers.config import Config
from stagedb.models.readers.layers import taken
from stagedb.models.readers.parts import biases, decoder

_MULTIPLE = 256
"""Widths are multiples of it."""

_OTHER = (
    *("replace_with_linear", "sparsify", "window_length", "num_sink_tokens", "use_prefill_window_in_sink_attention"),
    *("unshifted_sink", "mamba", "llama4", "moe"),
)
"""Further keys of a block's parts, which are not built: published models have them without a value."""

Part = Mapping[str, Any]


def deci_lm(config: Config, name: str) -> Card:
    """Llama-Nemotron Super and Ultra (DeciLM): heads of keys and widths of feed-forwards by layer, and layers without
    one of the two."""
    blocks, heads = _blocks(config), config.count("num_attention_heads")
    hidden = config.count("hidden_size")
    made = [(_kv_heads(heads, *each), _width(hidden, *each)) for each in enumerate(blocks)]
    layers = [each for each in made if any(each)]
    keys, widths = ([each[at] for each in layers if each[at]] for at in (0, 1))
    if not keys or not widths:
        raise UsageError("block_configs without any attention, or without any feed-forward, is not supported")
    config.uses("num_key_value_heads", "intermediate_size", "num_hidden_layers")
    # The card has the fewest heads of keys, of which ranks of tp may hold copies.
    usual, least = Counter(widths).most_common(1)[0][0], min(keys)
    read = config.changed(num_hidden_layers=len(layers), num_key_value_heads=least)
    card = decoder(read, name, "nemotron-nas", ffn=usual)
    attention, out = config.flag("attention_bias"), config.flag("mlp_bias")
    words = biases("all" if attention else "none", out)
    kinds = {_name(*each): taken(_content(card, words, *each)) for each in layers}
    described: Any = kinds
    return replace(card, layer_kinds=described, pattern=tuple(_name(*each) for each in layers))


def _blocks(config: Config) -> list[Part]:
    """The entries of a config. UsageError for another number of them than layers."""
    blocks, layers = config.need("block_configs"), config.count("num_hidden_layers")
    if not isinstance(blocks, list) or len(blocks) != layers:
        count = f"of {len(blocks)} blocks" if isinstance(blocks, list) else shown(blocks)
        raise UsageError(f"block_configs {count}, and there are {layers} layers")
    for number, block in enumerate(blocks):
        if not isinstance(block, Mapping) or any(not isinstance(block.get(part), Mapping) for part in _PARTS):
            raise UsageError(f"block_configs: block {number} must have {' and '.join(_PARTS)}, not {shown(block)}")
        for part, known in _PARTS.items():
            _check_part(f"block_configs: {part} of block {number}", block[part], known)
    return blocks


_PARTS: Mapping[str, tuple[str, ...]] = {
    "attention": ("no_op", "n_heads_in_group", "num_key_value_heads"),
    "ffn": ("no_op", "ffn_mult", "intermediate_size", "hidden_act", "gated"),
}
"""The parts of a block, each with the keys that are read."""


def _check_part(where: str, part: Part, known: tuple[str, ...]) -> None:
    """Raise UsageError for a key of a part that nothing reads, unless it has no value."""
    for key, value in part.items():
        if key not in known and (key not in _OTHER or value not in (None, False)):
            raise UsageError(f"{where} with {key}={shown(value)} is not supported: {', '.join(known)} only")
    if part.get("hidden_act") not in (None, "silu") or part.get("gated") not in (None, True):
        raise UsageError(f"{where} is not supported: feed-forwards with gates and silu only")
    if type(part.get("no_op", False)) is not bool:
        raise UsageError(f"{where}: no_op must be true or false, not {shown(part['no_op'])}")


def _kv_heads(heads: int, number: int, block: Part) -> int:
    """The heads of keys of a block; 0: it has no attention."""
    part = block["attention"]
    if part.get("no_op"):
        return 0
    group, given = part.get("n_heads_in_group"), part.get("num_key_value_heads")
    found = given if group is None else heads // group if type(group) is int and group > 0 else None
    if type(found) is not int or found < 1 or heads % found or (given or found) != found:
        raise UsageError(
            f"block_configs: attention of block {number} must have n_heads_in_group, a divisor of {heads} heads, not "
            f"{shown(group if given is None else given)}"
        )
    return found


def _width(hidden: int, number: int, block: Part) -> int:
    """The width of a block's feed-forward; 0: it has none."""
    part = block["ffn"]
    if part.get("no_op"):
        return 0
    times, given = part.get("ffn_mult"), part.get("intermediate_size")
    if times is None and type(given) is int and given > 0:
        return given
    if type(times) not in (int, float) or not 0 < times < FAR or given is not None:
        raise UsageError(
            f"block_configs: ffn of block {number} must have ffn_mult, a number above 0, or intermediate_size, not "
            f"{shown(times)} and {shown(given)}"
        )
    return -(-int(2 * times * hidden / 3) // _MULTIPLE) * _MULTIPLE


def _name(kv_heads: int, width: int) -> str:
    """The name of a layer's kind: `kv8_ffn28672`, or one of the two for a layer without the other."""
    return "_".join([f"kv{kv_heads}"] * (kv_heads > 0) + [f"ffn{width}"] * (width > 0))


def _content(card: Card, words: Mapping[str, Value], kv_heads: int, width: int) -> dict[str, Value]:
    """The description of a kind."""
    own: dict[str, Value] = {"kv_heads": kv_heads} if kv_heads not in (0, card.kv_heads) else {}
    own |= {"ffn": width} if width not in (0, card.ffn) else {}
    if not width:
        return {**words, **own, "mixer": "attention", "channel_mixer": "none", "residual": "mixer_alone"}
    if not kv_heads:
        return {**words, **own, "mixer": "none", "channel_mixer": "feed_forward", "residual": "channel_mixer_alone"}
    return {**words, **own, "mixer": "attention", "channel_mixer": "feed_forward"}


READERS = {"DeciLMForCausalLM": deci_lm}
"""The reader of each architecture."""
