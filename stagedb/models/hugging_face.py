"""Cards from the `config.json` of a Hugging Face checkpoint."""

import re
from collections.abc import Mapping
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.models.card import Card, read_length
from stagedb.models.readers import READERS, WITHOUT_EFFECT, Config
from stagedb.models.readers.classes import check_type, class_of, class_of_architecture
from stagedb.models.readers.config import rotary
from stagedb.models.readers.nested_decoders import TEXT_MODELS, WHOLE_MODELS, text_of, with_tables
from stagedb.models.readers.whole_file import check_file

# The architectures that an unknown one is near to in structure: those whose readers use the keys of its config.

_MOST = 3
_LEAST = 0.5
"""The share of keys that two structures have in common, and of letters that two names have, at least."""

_ENDS = re.compile("For(CausalLM|ConditionalGeneration)$|LMHeadModel$")


def near_architectures(config: Mapping[str, Any], word: str) -> str:
    """The end of an error that names them, nearest first: what reads the config, and the keys that it does not use.

    word: the name of the unknown architecture, which decides among equals, and alone where nothing reads the config.
    """
    inner = config.get("text_config")
    content = dict(inner if isinstance(inner, Mapping) else config)
    found = []
    for number, name in enumerate(WHOLE_MODELS if isinstance(inner, Mapping) else READERS):
        rated = _rated(name, content)
        if rated is not None and rated[0] >= _LEAST:
            share, unread = rated
            found.append((len(unread), -round(share, 1), -_alike(name, word), number, name, unread))
    taken: dict[object, str] = {}
    for *_, name, unread in sorted(found):
        taken.setdefault(READERS[_reader(name)], f"{name} ({_uses(unread)})")
    if taken:
        return f"; near in structure are {', '.join(list(taken.values())[:_MOST])}"
    names = sorted((*READERS, *WHOLE_MODELS), key=lambda name: -_alike(name, word))
    near = [name for name in names[:_MOST] if _alike(name, word) > _LEAST]
    return f"; near names are {', '.join(near)}" if near else ""


def _reader(name: str) -> str:
    return TEXT_MODELS[WHOLE_MODELS[name][0]] if name in WHOLE_MODELS else name


def _rated(name: str, content: Mapping[str, Any]) -> tuple[float, list[str]] | None:
    """The share of keys that a class and a file have in common, and those that its reader does not use.

    None: the reader refuses the file. Without a class, the share is that of the file's keys that its reader asks for.
    """
    of = class_of(WHOLE_MODELS[name][0]) if name in WHOLE_MODELS else class_of_architecture(name)
    read = Config(content, of=of)
    try:
        READERS[_reader(name)](read, "unknown")
        rotary(read)
    except UsageError:
        return None
    given = {of.spellings(key)[0] for key in content if key not in WITHOUT_EFFECT}
    known = {of.spellings(key)[0] for key in of.defaults or read.asked if key not in WITHOUT_EFFECT}
    both = given | known if of.defaults else given
    return len(given & known) / max(1, len(both)), sorted(read.unread())


def _uses(unread: list[str]) -> str:
    more = f" and {len(unread) - 2} more" if len(unread) > 2 else ""
    return f"uses all its keys but {', '.join(unread[:2])}{more}" if unread else "uses all its keys"


def _alike(name: str, word: str) -> float:
    """The share of letters that two names have in common, without their usual ends."""
    return SequenceMatcher(None, _ENDS.sub("", name).lower(), _ENDS.sub("", word).lower()).ratio()


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
