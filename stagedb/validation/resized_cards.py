"""Models of tables: a card of the library, or one with other sizes, such as `llama3-70b 12 layers`."""

import dataclasses
import re
from collections.abc import Mapping

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.mentions import call
from stagedb.models import Card, card_names, load_card

MODELS: Mapping[str, str] = {"bloom": "bloom-176b"}
"""Names of models in tables, and the cards that they mean. A card's own name means itself."""

_LAYERS = re.compile(r"(?P<layers>[0-9]{1,4}) layers")
_SIZES = re.compile(r"(?:h(?P<hidden>[0-9]{1,7}))?(?: ?l(?P<layers>[0-9]{1,4}))?(?: ?heads(?P<heads>[0-9]{1,5}))?")
_WORDS = "`N layers`, or `hH lL headsN`, of which each may be left out"


def named_card(word: str) -> Card:
    """The card of a table's word: a name, and perhaps sizes that it has instead of the card's own.

    Raises UsageError for an unknown name, other words, and sizes that make no model of the card's kind.
    """
    written, _, sizes = word.partition(" ")
    name = MODELS.get(written, written)
    if name not in card_names():
        raise UsageError(f"model is {shown(written)}, and the library has no such card ({call('models')})")
    card = load_card(name)
    if not sizes:
        return card
    found = _LAYERS.fullmatch(sizes) or _SIZES.fullmatch(sizes)
    if found is None:
        raise UsageError(f"model is {shown(word)}, and sizes after a name are {_WORDS}")
    numbers = {size: int(number) for size, number in found.groupdict().items() if number}
    if card.pattern or card.dense_layers:
        raise UsageError(f"model is {shown(word)}, and the layers of {name} are of several kinds")
    if numbers.keys() != {"layers"}:
        _check_of_one_width(card, word)
    return _resized(card, numbers, word)


def _check_of_one_width(card: Card, word: str) -> None:
    """Raise UsageError for a card whose other sizes do not follow from its width and its heads."""
    usual = card.heads * card.head_dim == card.hidden and card.kv_heads in (1, card.heads)
    own = [value for kind in card.kinds.values() for _, value in kind.values if type(value) is int and value]
    if not usual or card.experts or card.blocks or card.embedding_width or own or card.ffn % card.hidden:
        raise UsageError(
            f"model is {shown(word)}, and {card.name} has sizes that its width and its heads do not give: write a card "
            "of its own, and name it"
        )


def _resized(card: Card, numbers: Mapping[str, int], word: str) -> Card:
    """The card with other sizes: heads share its width evenly, and its feed-forward remains as many times as wide."""
    hidden, heads = numbers.get("hidden", card.hidden), numbers.get("heads", card.heads)
    changed: dict[str, int] = {"layers": numbers.get("layers", card.layers)}
    if numbers.keys() != {"layers"}:
        if heads == 0 or hidden % heads:
            raise UsageError(f"model is {shown(word)}, and {heads} heads do not share a width of {hidden} evenly")
        changed |= {"hidden": hidden, "heads": heads, "head_dim": hidden // heads}
        changed |= {"kv_heads": heads if card.kv_heads > 1 else 1, "ffn": hidden * (card.ffn // card.hidden)}
    return dataclasses.replace(card, **changed, parameters=0)  # type: ignore[arg-type]
