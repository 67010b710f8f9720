"""Words that verbs read files by: a tool takes names of the libraries, and values, in their place."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from stagedb.errors import UsageError
from stagedb.files import did_you_mean, shown
from stagedb.mentions import call
from stagedb.models import card_names
from stagedb.plans.aspects import PLAN_WORDS
from stagedb.plans.written_words import typed_words
from stagedb.systems.system_files import system_names

NO_FILES: Final = "tools read no files"

_STRATEGY, _SCHEDULE = "strategy", "schedule"


def known_system(name: str | None) -> str | None:
    """A preset's name, or None for the default one. Raises UsageError for other words, which may be paths."""
    return name if name is None else _known(name, system_names(), "system", "systems")


def known_model(name: str) -> str:
    """A name of the library of models. Raises UsageError for other words, which may be paths."""
    return _known(name, card_names(), "model", "models")


def _known(name: str, names: Sequence[str], what: str, verb: str) -> str:
    if name in names:
        return name
    hint = did_you_mean(name.lower(), names, most=3, cutoff=0.4)
    raise UsageError(f"no {what} of the library is named {shown(name)}{hint}: {call(verb)} lists them, and {NO_FILES}")


def plan_words(words: Mapping[str, Any]) -> dict[str, Any]:
    """The words of a plan, checked. Raises UsageError for a name of a file, for other words, and for wrong types."""
    found = {str(word).replace("-", "_"): value for word, value in words.items()}
    typed_words(words)
    for word, value in found.items():
        check_value(word, value)
    return found


def check_value(word: str, value: Any) -> None:
    """Raise UsageError for a text that a plan would read as the name of a file.

    word: its name. value: as a request has it.
    """
    if not isinstance(value, str) or not value:
        return
    if word == _STRATEGY and not value.lstrip().startswith("{"):
        raise UsageError(f"{word} {shown(value)} is no strategy: give its JSON, as {NO_FILES}")
    if word == _SCHEDULE and not value.replace("-", "").replace("_", "").isalnum():
        raise UsageError(f"{word} {shown(value)} is no name of a schedule: give a name or task_order, as {NO_FILES}")
    if PLAN_WORDS[word].about.file:
        raise UsageError(f"{word} {shown(value)} is no list: give its values as a list, as {NO_FILES}")
