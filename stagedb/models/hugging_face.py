"""Cards from the `config.json` of a Hugging Face checkpoint."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.models.card import Card
from stagedb.models.near_architectures import near_architectures
from stagedb.models.readers import READERS, Config
from stagedb.models.readers.classes import check_type, class_of_architecture
from stagedb.models.readers.config import rotary
from stagedb.models.readers.nested_decoders import WHOLE_MODELS, text_of, with_tables
from stagedb.models.readers.whole_file import check_file
from stagedb.models.sequence_length import read_length

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size", "moe_num_experts")
_POSITIONS = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len")
"""Keys of the number of positions."""


def from_hugging_face(config: Mapping[str, Any], *, name: str) -> Card:
    """The card of a decoder-only model, or of the text part of a model with others.

    UsageError, with the reason, for an architecture that is none of `READERS`, a missing key, a choice that a card
    cannot express, and a key that the reader does not know. config: the content of `config.json`. name: the card's.
    """
    architecture = _architecture(config)
    check_file(config)
    check_type(architecture, config)
    whole = architecture in WHOLE_MODELS
    if whole:
        reader, read = text_of(architecture, config)
    else:
        reader, read = architecture, Config(config, of=class_of_architecture(architecture))
    card = READERS[reader](read, name)
    # Whose word ties the tables of a whole model is a rule of its own (`with_tables`).
    _check_class(reader, read, card, apart=("tie_word_embeddings",) if whole else ())
    experts = [key for key in _EXPERTS if not read.has_read(key) and read.given(key)]
    if experts and not card.experts:
        raise UsageError(
            f"a mixture of experts ({experts[0]}={shown(read[experts[0]])}) is not supported in {architecture}"
        )
    named = [key for key in _POSITIONS if read.given(key) is not None]
    length = read_length(read, card.max_positions, f"{named[0]} of config.json" if named else "the usual positions")
    share = rotary(read).get("partial_rotary_factor")
    if share not in (None, 1) and not read.has_read("partial_rotary_factor"):
        raise UsageError(
            f"partial_rotary_factor {shown(share)} is not supported in {architecture}: whole heads are turned"
        )
    unread = sorted(read.unread())
    if unread:
        raise UsageError(
            f"{architecture} with {unread[0]}={shown(read[unread[0]])} is not supported: no reader knows that key; "
            "take it out if it changes no shape, no FLOPs and no memory"
        )
    if whole:
        card = with_tables(architecture, config, card)
    return replace(
        card,
        parameters=card.count_parameters(),
        train_seq_len=length.tokens,
        train_seq_len_source=length.reason,
    )


def _check_class(reader: str, read: Config, card: Card, apart: tuple[str, ...]) -> None:
    """Raise UsageError for a key that makes another card, and that the class of the config does not have.

    The model's own code does not read such a key: it is one of another class, or a spelling that nobody has.
    apart: keys that have another rule.
    """
    others = [key for key in read.of_no_class() if key not in apart]
    if not others or _card_without(reader, read, card.name, *others) == card:
        return
    key = next((each for each in others if _card_without(reader, read, card.name, each) != card), others[0])
    raise UsageError(
        f"{key}={shown(read.given(key))} is not supported in {reader}: the class of its config has no such key, and "
        "the model's own code does without it; take it out"
    )


def _card_without(reader: str, read: Config, name: str, *keys: str) -> Card | None:
    """The card of a config without some keys; None if there is none."""
    try:
        return READERS[reader](read.without(*keys), name)
    except UsageError:
        return None


def _architecture(config: Mapping[str, Any]) -> str:
    """The architecture that a config names. UsageError if it is not known, and for none or several."""
    named = config.get("architectures") or []
    words = [word for word in named if isinstance(word, str)] if isinstance(named, list) else []
    known = [*READERS, *WHOLE_MODELS]
    if len(set(words)) > 1:
        raise UsageError(
            f"`architectures` names several, {shown(', '.join(words))}: leave the one whose model the sizes are"
        )
    if words and words[0] in known:
        return words[0]
    given = shown(", ".join(words)) if words else "none named in `architectures`"
    hint = near_architectures(config, words[0]) if words else ""
    raise UsageError(
        f"architecture not supported: {given}{hint}. {len(known)} are read, such as LlamaForCausalLM: docs/models.md "
        "lists them, and a card of your own has other models"
    )
