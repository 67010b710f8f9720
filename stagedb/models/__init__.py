"""Models as data: cards with sizes from published configs, and the blocks that are written from them.

`load_card` takes a name of the library, a card file of one's own or a Hugging Face `config.json`. `blocks` writes the
forward pass of a card's transformer; it is imported on its own, for it needs the graph's operators.
"""

from stagedb.models.card import Card
from stagedb.models.card_library import card_names, load_card
from stagedb.models.hugging_face import from_hugging_face

__all__ = ["Card", "card_names", "from_hugging_face", "load_card"]
