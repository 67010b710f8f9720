"""The sequence length that plans of a model have if they name none."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown

LONGEST_GUESS = 8192
"""Tokens. The last position of a model is often far beyond the sequences that it was trained with, and attention over
all positions would then be most of a step. A length that comes from the last position alone is at most this."""

_ORIGINAL = "original_max_position_embeddings"
_ROTARY = ("rope_scaling", "rope_parameters")
"""Where configs keep the choices of rotary positions, in older and newer versions of Transformers."""


@dataclass(frozen=True)
class SequenceLength:
    """tokens: the length of a sequence. reason: where it comes from, in words."""

    tokens: int
    reason: str


def guessed(positions: int, word: str) -> SequenceLength:
    """The sequence length to take for a model that only has a number of positions. word: the name of that number."""
    if positions <= LONGEST_GUESS:
        return SequenceLength(positions, word)
    return SequenceLength(LONGEST_GUESS, f"at most {LONGEST_GUESS:,} of {positions:,}: {word}")


def read_length(config: Mapping[str, Any], positions: int, word: str) -> SequenceLength:
    """The length for a Hugging Face config: the one before its positions were extended, if it has that.

    positions: the number of positions of its model; word: the name of that number. Raises UsageError if the original
    length is no whole number.
    """
    for original in _originals(config):
        if type(original) is not int or original < 1:
            raise UsageError(f"{_ORIGINAL} must be a whole number from 1, not {shown(original)}")
        return SequenceLength(min(original, positions), f"{_ORIGINAL} of config.json")
    return guessed(positions, word)


def _originals(config: Mapping[str, Any]) -> Iterator[Any]:
    """The values of the key in the config and in what it has on rotary positions, for all layers or by their type."""
    rotary = [config[key] for key in _ROTARY if isinstance(config.get(key), Mapping)]
    by_type = [each for one in rotary for each in one.values() if isinstance(each, Mapping)]
    for place in (config, *rotary, *by_type):
        if place.get(_ORIGINAL) is not None:
            yield place[_ORIGINAL]
