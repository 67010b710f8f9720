"""YAML, JSON and TOML as plain data, with bounds on everything that a text can make grow.

A document has lists, mappings with texts as keys, texts, integers of 64 bits, finite numbers, booleans and None. YAML's
tags, anchors, aliases and second documents are refused, and its dates are texts. Nothing is constructed from a text
but these.
"""

import contextlib
import json
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from stagedb.errors import UsageError
from stagedb.files.bounded_files import LARGEST, read_text
from stagedb.files.texts import shown
from stagedb.files.whole_files import path_text

DEEPEST = 32
"""Levels of lists and mappings in one document."""

LONGEST_NUMBER = 400
"""Characters of the longest number. Python reads longer integers slowly, or not at all."""

_LONG_NUMBER = re.compile(rf"[0-9_]{{{LONGEST_NUMBER},}}")
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_FORMS = {".yaml": "YAML", ".yml": "YAML", ".json": "JSON", ".toml": "TOML"}


def read_document(
    path: Path,
    what: str,
    endings: Iterable[str] = (".yaml", ".yml", ".json"),
    most: int = LARGEST,
    option: str = "",
    constants: bool = False,
) -> Any:
    """The content of a file, in the form that its name ends in (YAML if it has no ending).

    constants: `Infinity` and `NaN` in JSON, which Python writes, are texts; otherwise they are refused. UsageError,
    which names the file, its line if the form has lines, and what is wrong. what: what the file is, for errors.
    endings: of the names that are taken. most: the largest size [bytes]. option: of the command line, for errors.
    """
    ending, known = path.suffix.lower(), tuple(endings)
    if ending and ending not in known:
        hint = f" ({option})" if option else ""
        raise UsageError(f"cannot read the {what} {path_text(path)}: its name must end in {_either(known)}{hint}")
    text = read_text(path, what, most, option)
    return parse_document(text, _FORMS.get(ending, "YAML"), f"the {what} {path_text(path)}", constants)


def parse_json(text: str, where: str) -> Any:
    """The content of a JSON text, as `parse_document` returns it: the form of values in a store.

    where: begins an error.
    """
    return parse_document(text, "JSON", where)


def parse_document(text: str, form: str, where: str, constants: bool = False) -> Any:
    """The content of a text in a form: `YAML`, `JSON` or `TOML`. UsageError, which begins with `where`.

    constants: `Infinity` and `NaN` in JSON are texts; otherwise they are refused.
    """
    with named(form, where):
        if form == "YAML":
            # Most documents that a command reads are JSON texts of a store.
            from stagedb.files.yaml_nodes import compose_text, plain

            node = compose_text(text)
            content = None if node is None else plain(node)
        elif form == "JSON":
            constant = str if constants else _no_constant
            content = json.loads(
                text, object_pairs_hook=_without_duplicates, parse_constant=constant, parse_int=_integer
            )
        else:
            content = _toml(text)
        _check(content)
        return content


@contextlib.contextmanager
def named(form: str, where: str) -> Iterator[None]:
    """Turns each error of a parser into a UsageError that begins with `where`. form: of the document, for errors."""
    try:
        yield
    except RecursionError:
        raise UsageError(f"{where} is nested too deeply: at most {DEEPEST} levels are read") from None
    except Refused as refused:
        raise UsageError(f"{where}{refused}") from None
    except ValueError as error:
        raise UsageError(f"{where}: not {form}: {one_line(error)}") from None


class Refused(Exception):
    """A document that is well formed, and has something that is not read. The text follows the document's name."""


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        raise Refused(f": the key {shown(twice)} appears twice")
    return found


def _toml(text: str) -> dict[str, Any]:
    if _LONG_NUMBER.search(text):
        raise Refused(f" has a number with more than {LONGEST_NUMBER} digits")
    import tomllib

    return tomllib.loads(text)


def _integer(text: str) -> int:
    if len(text) > LONGEST_NUMBER:
        raise Refused(f": a number with {len(text)} characters is too long")
    return int(text)


def _no_constant(name: str) -> None:
    raise Refused(f" has {name}, which is no number in JSON")


def _check(content: Any) -> None:
    """Raise Refused for a value that a document cannot have, keys included. Level by level, without recursion."""
    level, values = 1, [content]
    while values:
        if level > DEEPEST:
            raise Refused(f" is nested too deeply: at most {DEEPEST} levels are read")
        deeper: list[Any] = []
        for value in values:
            if isinstance(value, str):
                if not value.isascii():
                    _check_text(value)
            elif isinstance(value, dict):
                deeper += value
                deeper += value.values()
            elif isinstance(value, list):
                deeper += value
            else:
                _check_scalar(value)
        level, values = level + 1, deeper


def _check_scalar(value: Any) -> None:
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int):
        if not _LEAST <= value <= _MOST:
            raise Refused(f" has the number {shown(value)}, and whole numbers have at most 64 bits")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise Refused(f" has the number {value}, and numbers must be finite")
    else:
        raise Refused(f" has {shown(str(value))}, a {type(value).__name__}: write it as a text, in quotes")


def _check_text(value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Refused(f" has the text {shown(value)}, which is not Unicode (half of a surrogate pair)") from None


def _either(words: tuple[str, ...]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def one_line(error: object) -> str:
    """The start of an error's text, without ends of lines."""
    return " ".join(str(error).split())[:200]
