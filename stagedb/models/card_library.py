"""The library of cards that ships with stagedb, and users' card files."""

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from stagedb.errors import UsageError
from stagedb.files import did_you_mean, is_directory, is_there, path_text, read_document, shown
from stagedb.mentions import call
from stagedb.models.card import Card
from stagedb.models.hugging_face import from_hugging_face
from stagedb.models.kinds.own import read_blocks

_KEYS = tuple(field.name for field in fields(Card))
_REQUIRED = tuple(field.name for field in fields(Card) if field.default is MISSING)


@lru_cache(maxsize=1)
def card_names() -> tuple[str, ...]:
    """The names of the library's models, alphabetically."""
    found = [entry.name.removesuffix(".yaml") for entry in _cards().iterdir() if entry.name.endswith(".yaml")]
    return tuple(sorted(found, key=_by_size))


def _by_size(name: str) -> list[tuple[int, int, str]]:
    """Sort key that reads numbers as numbers: 7b comes before 70b."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"([0-9]+)", name) if part]


def load_card(model: str | Path) -> Card:
    """The card of a name of the library, or of a path: a card (YAML, JSON, TOML), a Hugging Face `config.json`, or a
    directory that holds one.

    UsageError for an unknown name (with the near ones), a file that cannot be read, unknown and missing keys. model:
    the name or the path.
    """
    if isinstance(model, str) and model in card_names():
        return _library_card(model)
    path = Path(model)
    if is_directory(path):
        path = path / "config.json"
    if is_there(path):
        return _card_of(read_document(path, "model card", (".yaml", ".yml", ".json", ".toml"), constants=True), path)
    if isinstance(model, str) and path.suffix not in (".yaml", ".yml", ".json", ".toml") and path.name == model:
        hint = did_you_mean(model.lower(), card_names(), most=4, cutoff=0.5)
        raise UsageError(
            f"unknown model {shown(model)}{hint}: {call('models')} lists the library, and the path of a card or of a "
            "Hugging Face config.json will do too"
        )
    raise UsageError(f"no model card at {path_text(path)}: there is no such file")


@lru_cache(maxsize=128)
def _library_card(name: str) -> Card:
    entry = _cards() / f"{name}.yaml"
    return _from_keys(read_document(entry, "model card"), f"{name}.yaml")


def _card_of(content: object, path: Path) -> Card:
    if isinstance(content, Mapping) and ("architectures" in content or "model_type" in content):
        try:
            return from_hugging_face(content, name=_name_of(path))
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error
    return _from_keys(content, path_text(path), path.parent)


PADDED = "padded_vocab"
"""The rows of the vocabulary's table with those that pad it."""


def _name_of(path: Path) -> str:
    """A model's name from the path of its config: `Llama-3.1-8B/config.json` is `Llama-3.1-8B`."""
    word = path.absolute().parent.name if path.name == "config.json" else path.stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", word).strip("._-") or "model"


def _from_keys(content: object, where: str, folder: Path | None = None) -> Card:
    """The card of a file's content. folder: its directory, which has the files of its own blocks."""
    if not isinstance(content, Mapping):
        raise UsageError(f"{where} is no model card: expected keys such as {', '.join(_REQUIRED[:4])}")
    # What `models` prints of a card may be written to a file: this follows from the other keys.
    padded = content.get(PADDED)
    content = {key: value for key, value in content.items() if key != PADDED}
    unknown = [str(key) for key in content if key not in _KEYS]
    if unknown:
        hint = did_you_mean(unknown[0], _KEYS)
        raise UsageError(f"{where}: unknown key {shown(unknown[0])}{hint}; a card has {', '.join(_KEYS)}")
    missing = [key for key in _REQUIRED if key not in content]
    if missing:
        raise UsageError(f"{where}: missing {', '.join(missing)}")
    if "blocks" in content:
        content = {**content, "blocks": read_blocks(content["blocks"], folder, where)}
    try:
        card = Card(**content)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    counted = card.count_parameters()
    if card.parameters not in (0, counted):
        raise UsageError(f"{where}: parameters is {card.parameters}, but these sizes make {counted}")
    if padded not in (None, card.padded_vocab):
        raise UsageError(f"{where}: {PADDED} is {shown(padded)}, but vocab and vocab_multiple make {card.padded_vocab}")
    return card


def _cards() -> Path:
    return Path(str(files("stagedb.models"))) / "cards"
