"""Models as data: cards with sizes from published configs, and the blocks that are written from them.

`load_card` takes a name of the library, a user's card file or a Hugging Face `config.json`. `blocks` writes the forward
pass of a card's transformer. It is imported on its own, because it needs the graph's operators.
"""

from typing import TYPE_CHECKING

from stagedb.lazy_names import lazily, listed

if TYPE_CHECKING:
    from stagedb.models.card import Card, SequenceLength
    from stagedb.models.card_library import card_names, load_card
    from stagedb.models.hugging_face import from_hugging_face

__all__ = ["Card", "SequenceLength", "card_names", "from_hugging_face", "load_card"]

_MODULES = {
    "card": (
        "Card",
        "SequenceLength",
    ),
    "card_library": (
        "card_names",
        "load_card",
    ),
    "hugging_face": ("from_hugging_face",),
}

# A card has all kinds of layers. Plans are read and listed without any: they need names of adapters alone.
__getattr__ = lazily(__name__, _MODULES)
__dir__ = listed(globals())
