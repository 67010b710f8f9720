"""The library of model cards, as rows. It needs no store."""

from typing import Any

from stagedb.api import model_names
from stagedb.api.python_words import for_python
from stagedb.models import card_names


def models() -> list[dict[str, Any]]:
    """The library of model cards: one row a model, with its sizes and its number of parameters."""
    shown = ("family", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "max_positions", "train_seq_len")
    cards = [model_names.card(name) for name in card_names()]
    return [
        {"name": card.name}
        | {name: value for name, value in card.to_dict().items() if name in shown}
        | {"parameters": card.count_parameters()}
        for card in cards
    ]


@for_python
def model(name: str) -> dict[str, Any]:
    """One card, by a name of the library or a path, with its number of parameters. UsageError for unknown names."""
    card = model_names.card(name)
    return card.to_dict() | {"parameters": card.count_parameters()}
