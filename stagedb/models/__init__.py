"""Models as data: cards with sizes from published configs, and the blocks that are written from them.

`load_card` takes a name of the library, a user's card file or a Hugging Face `config.json`. `blocks` writes the forward
pass of a card's transformer. It is imported on its own, because it needs the graph's operators.
"""

from stagedb.models.card import Card
from stagedb.models.card_library import card_names, load_card
from stagedb.models.hugging_face import from_hugging_face
from stagedb.models.sequence_length import SequenceLength

__all__ = ["Card", "SequenceLength", "card_names", "from_hugging_face", "load_card"]
