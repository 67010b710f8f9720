"""The library of model cards, as rows. It needs no store."""

import math
from collections.abc import Sequence
from typing import Any

from stagedb.api import model_names
from stagedb.api.python_words import for_python
from stagedb.models import Card, card_names
from stagedb.models.kinds.own import shapes_of


@for_python
def models(like: str | None = None) -> list[dict[str, Any]]:
    """The library of model cards: one row a model, with its sizes and its number of parameters.

    like: a model's name, or the path of a card or config: the models nearest to it in size come first, each with
    `factor`, the factor by which its sizes differ on average (1.0: not at all). UsageError for an unknown name.
    """
    if like is None:
        return [_row(model_names.card(name)) for name in card_names()]
    wanted = model_names.card(like)
    cards = map(model_names.card, card_names())
    found = [{**_row(card, _SHOWN_NEAR), "factor": round(factor(wanted, card), 2)} for card in cards]
    return sorted(found, key=lambda row: row["factor"])[:_NEAREST]


_SHOWN = ("family", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "max_positions", "train_seq_len")
_SHOWN_NEAR = ("layers", "hidden", "heads", "experts")
_COMPARED = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "experts", "top_k", "expert_ffn")
_NEAREST = 10
"""Models that `like` names."""


def _row(card: Card, columns: Sequence[str] = _SHOWN) -> dict[str, Any]:
    sizes = {name: value for name, value in card.to_dict().items() if name in columns}
    return {"name": card.name, **sizes, "parameters": card.count_parameters()}


def factor(one: Card, other: Card) -> float:
    """The geometric mean of the factors by which the sizes of two models differ. What neither has does not count."""
    pairs = [(getattr(one, name), getattr(other, name)) for name in _COMPARED]
    pairs.append((one.count_parameters(), other.count_parameters()))
    # A model without experts counts as one with a single expert.
    apart = [abs(math.log(max(a, 1) / max(b, 1))) for a, b in pairs if a or b]
    return math.exp(sum(apart) / len(apart))


@for_python
def model_layers(name: str) -> list[dict[str, Any]]:
    """The kinds of a model's layers: name, numbers of their layers, and their parts with what these take."""
    card = model_names.card(name)
    return [
        {
            "kind": kind.name,
            "numbers": [number for number, its in enumerate(card.sequence) if its == kind.name],
            "mixer": kind.mixer,
            "channel_mixer": kind.channel_mixer,
            "residual": kind.residual,
            "words": dict(kind.values),
        }
        for kind in card.kinds.values()
    ]


@for_python
def model_blocks(name: str) -> list[dict[str, Any]]:
    """The steps of a model's own blocks: what each reads and makes, and the axis that tp cuts in it (None: no axis).

    name: of the library, or a path of a card.
    """
    return [
        {
            "block": block.name,
            "step": step.name,
            "operator": step.operator,
            "argument": step.argument,
            "of": list(step.of),
            "axes": list(shapes.axes[step.name]),
            "tp": shapes.cuts[step.name] or None,
            "parameters": {each.name: each.text for each in block.parameters if each.name in step.of},
        }
        for block, shapes in ((block, shapes_of(block)) for block in model_names.card(name).blocks)
        for step in block.steps
    ]


@for_python
def model(name: str) -> dict[str, Any]:
    """One card, by a name of the library or a path, with its number of parameters. UsageError for unknown names.

    A card that pads its vocabulary has `padded_vocab` too; the parameters are without these rows.
    """
    card = model_names.card(name)
    padded = {} if card.padded_vocab == card.vocab else {"padded_vocab": card.padded_vocab}
    return card.to_dict() | {"parameters": card.count_parameters()} | padded


@for_python
def model_flops(name: str, seq_len: int | None = None) -> dict[str, int]:
    """The FLOPs of a forward of one sequence of a model, by a name of the library or a path.

    seq_len: tokens of the sequence; by default those that the model was trained with. `attention_flops` is the part of
    `forward_flops` for pairs of queries and keys, as counters of FLOPs have it; `forward_flops_without_masked` leaves
    out the pairs that a causal mask, a window or a chunk leaves out. UsageError for unknown names, and for a sequence
    that is too short or too long.
    """
    from stagedb.api.forward_flops import forward_flops

    card = model_names.card(name)
    found = forward_flops(card, card.train_seq_len or card.max_positions if seq_len is None else seq_len)
    return {
        "seq_len": found.tokens,
        "forward_flops": found.counted,
        "attention_flops": found.attention,
        "forward_flops_without_masked": found.without_masked,
    }
