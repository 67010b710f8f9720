"""The architectures that an unknown one is near to in structure: those whose readers use the keys of its config."""

import re
from collections.abc import Mapping
from difflib import SequenceMatcher
from typing import Any

from stagedb.errors import UsageError
from stagedb.models.readers import READERS, WITHOUT_EFFECT, Config
from stagedb.models.readers.classes import class_of, class_of_architecture
from stagedb.models.readers.config import rotary
from stagedb.models.readers.nested_decoders import TEXT_MODELS, WHOLE_MODELS

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
