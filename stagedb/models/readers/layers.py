"""The layers of a Hugging Face config as a pattern of layer kinds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.models.card import USUAL, Card
from stagedb.models.kinds import CHANNEL_MIXERS, MIXERS, RESIDUALS, Value
from stagedb.models.readers.config import Config

WINDOW, CHUNK = "local", "chunked"
"""Beginnings of the names of kinds that see a part of the keys."""


@dataclass(frozen=True)
class Layer:
    """What a layer of a config has. mixer: the word of one that is not attention. words: those of its parts, in
    addition to the model's."""

    window: int = 0
    chunk: int = 0
    dense: bool = False
    rotary: bool = True
    mixer: str = ""
    words: Mapping[str, Value] = field(default_factory=dict)

    def name(self, shared: "Layer") -> str:
        """The name of its kind. What all layers of the model have is not in it."""
        words = [self.mixer] if self.mixer and not shared.mixer else []
        words += [WINDOW] if self.window and not shared.window else []
        words += [CHUNK] if self.chunk and not shared.chunk else []
        words += ["nope"] if not self.rotary and shared.rotary else []
        words += ["dense"] if self.dense else []
        words += ["blocks"] if self.words.get("index_block") else []
        words += ["earlier"] if self.words.get("keys") == "earlier" else []
        return "_".join(words) or USUAL

    def content(self, card: Card, usual: Mapping[str, Value]) -> dict[str, Value]:
        """The description of its kind in a card. usual: the words of all layers."""
        made: dict[str, Value] = {"mixer": "attention", "channel_mixer": "experts" if card.experts else "feed_forward"}
        made |= {**usual, **self.words} | ({"mixer": self.mixer} if self.mixer else {})
        if self.window or self.chunk:
            made["mixer"] = "sliding_window" if self.window else "chunked_attention"
        if self.window:
            made["window"] = self.window
        if self.chunk:
            made["chunk"] = self.chunk
        if not self.rotary:
            made["rotary"] = False
            made.pop("rotary_dim", None)
        if self.dense:
            made["channel_mixer"] = "feed_forward"
        return made


def with_layers(card: Card, layers: Sequence[Layer], usual: Mapping[str, Value] | None = None) -> Card:
    """The card with these layers. usual: words of all of them; those that a part does not take are left out."""
    if card.experts and all(each.dense for each in layers):
        card = replace(card, experts=0, top_k=0, expert_ffn=0, shared_ffn=0)
        layers = [replace(each, dense=False) for each in layers]
    shared = Layer(
        window=min(each.window for each in layers),
        chunk=min(each.chunk for each in layers),
        rotary=any(each.rotary for each in layers),
        mixer=min(each.mixer for each in layers),
    )
    names = [each.name(shared) for each in layers]
    kinds = {name: taken(each.content(card, usual or {})) for name, each in zip(names, layers, strict=True)}
    first = names.count("dense")
    leading = set(names) <= {USUAL, "dense"} and names == ["dense"] * first + [USUAL] * (len(names) - first)
    described: Any = kinds
    if leading and first < len(names):
        return replace(card, dense_layers=first, layer_kinds=described)
    return replace(card, layer_kinds=described, pattern=tuple(names))


def taken(content: Mapping[str, Value]) -> dict[str, Value]:
    """The content of a kind without the words that its parts and its residual do not take."""
    residual = RESIDUALS[str(content.get("residual", "serial"))]
    parts = (MIXERS[str(content["mixer"])], CHANNEL_MIXERS[str(content["channel_mixer"])], residual)
    known = {"mixer", "channel_mixer", "residual", *(word for part in parts for word in part.words)}
    return {word: value for word, value in content.items() if word in known}


def layer_types(config: Config, layers: int, known: Mapping[str, str]) -> list[str] | None:
    """The type of each layer, by the words that a reader knows; None if the config has none.

    known: what each type of the config is. UsageError for an unknown type, and for another number of layers.
    """
    types = config.get("layer_types")
    if types is None:
        return None
    if not isinstance(types, list) or len(types) != layers:
        count = f"of {len(types)} layers" if isinstance(types, list) else shown(types)
        raise UsageError(f"layer_types {count}, and there are {layers} layers")
    unknown = [each for each in types if not isinstance(each, str) or each not in known]
    if unknown:
        raise UsageError(f"layer_types {shown(unknown[0])} is not supported: {' and '.join(known)} only")
    return [known[each] for each in types]


def repeated(every: int, layers: int) -> list[bool]:
    """Whether a layer is the last of `every`, counted from the first.

    layers: of the model. Returns one bool for each layer.
    """
    return [(number + 1) % every == 0 for number in range(layers)]


def experts_from(config: Config, layers: int, first: int = 0) -> list[bool]:
    """Which layers have experts, where a config gives the first of them or a list of types. first: the default."""
    types = config.get("mlp_layer_types")
    if types is not None:
        known = {"dense": False, "sparse": True, "moe": True}
        if not isinstance(types, list) or len(types) != layers or any(each not in known for each in types):
            raise UsageError(f"mlp_layer_types is not supported: dense or sparse for each of {layers} layers only")
        config.uses("first_k_dense_replace", "moe_layer_freq")
        return [known[each] for each in types]
    first = config.count("first_k_dense_replace", default=first, least=0)
    every = config.get("moe_layer_freq", default=1)
    if isinstance(every, list):
        if len(every) != layers or any(each not in (0, 1) for each in every):
            raise UsageError(f"moe_layer_freq is not supported: 0 or 1 for each of {layers} layers only")
        return [bool(each) for each in every]
    if type(every) is not int or every < 1:
        raise UsageError(f"moe_layer_freq must be a whole number from 1, not {shown(every)}")
    return [number >= first and number % every == 0 for number in range(layers)]


def read_sparse(config: Mapping[str, Any], layers: int) -> tuple[bool, ...]:
    """Which layers of a Hugging Face config have experts.

    `decoder_sparse_step` N (or `interleave_moe_layer_step`): the layers N, 2N, … counted from 1, but for those that
    `mlp_only_layers` numbers from 0. `moe_layer_freq` N: the layers 0, N, 2N, … counted from 0, after the first
    `first_k_dense_replace`. Without any of them all layers have experts.
    """
    steps = (config.get(word) for word in ("decoder_sparse_step", "interleave_moe_layer_step"))
    step = next((each for each in steps if each is not None), 1)
    every = 1 if config.get("moe_layer_freq") is None else config["moe_layer_freq"]
    first = config.get("first_k_dense_replace") or 0
    for word, count in (("a step of layers with experts", step), ("moe_layer_freq", every)):
        if type(count) is not int or count < 1:
            raise UsageError(f"{word} must be a whole number from 1, not {shown(count)}")
    without = config.get("mlp_only_layers") or ()
    if not isinstance(without, list | tuple):
        raise UsageError(f"mlp_only_layers must be a list of numbers of layers, not {shown(without)}")
    return tuple(
        (number + 1) % step == 0 and number % every == 0 and number >= first and number not in without
        for number in range(layers)
    )
