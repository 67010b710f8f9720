"""YAML, JSON and TOML as plain data, with bounds on everything that a text can make grow.

A document has lists, mappings with texts as keys, texts, integers of 64 bits, finite numbers, booleans and None. YAML's
tags, anchors, aliases and second documents are refused, and its dates are texts. Nothing is constructed from a text
but these.
"""

import contextlib
import json
import math
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from stagedb.errors import UsageError
from stagedb.inputs.bounded_files import LARGEST, read_text
from stagedb.inputs.short_values import shown
from stagedb.outputs import path_text

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
    with _named(form, where):
        if form == "YAML":
            node = _compose(text)
            content = None if node is None else _plain(node)
        elif form == "JSON":
            constant = str if constants else _no_constant
            content = json.loads(
                text, object_pairs_hook=_without_duplicates, parse_constant=constant, parse_int=_integer
            )
        else:
            content = _toml(text)
        _check(content)
        return content


def compose(text: str, where: str) -> yaml.Node | None:
    """The nodes of a YAML text, each with its line; None for an empty text. Nothing is constructed from them.

    UsageError, which begins with `where`, for what is not YAML, and for tags, anchors, aliases and deep nesting.
    """
    with _named("YAML", where):
        return _compose(text)


@contextlib.contextmanager
def _named(form: str, where: str) -> Iterator[None]:
    """Turns each error of a parser into a UsageError that begins with `where`."""
    try:
        yield
    except RecursionError:
        raise UsageError(f"{where} is nested too deeply: at most {DEEPEST} levels are read") from None
    except _Refused as refused:
        raise UsageError(f"{where}{refused}") from None
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UsageError(f"{where}{line}: not YAML: {_one_line(error.problem or error.context)}") from None
    except (ValueError, yaml.YAMLError) as error:
        raise UsageError(f"{where}: not {form}: {_one_line(error)}") from None


class _Refused(Exception):
    """A document that is well formed, and has something that is not read. The text follows the document's name."""


# The parser in C, where PyYAML has it, reads a megabyte in a second.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _compose(text: str) -> yaml.Node | None:
    level = 0
    for event in yaml.parse(text, Loader=_LOADER):
        line = 1 if event.start_mark is None else event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _Refused(f", line {line}: anchors and aliases (& and *) are not read: repeat the value")
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise _Refused(f", line {line}: the tag {shown(tag)} is not read: leave it out")
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > DEEPEST:
            raise _Refused(f", line {line}: nested too deeply: at most {DEEPEST} levels are read")
    return yaml.compose(text, Loader=_LOADER)


def _plain(node: yaml.Node) -> Any:
    """The value of a node."""
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(each) for each in node.value]
    found: dict[str, Any] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise _Refused(f", line {line}: a key must be a text")
        name = str(key.value)
        if name in found:
            raise _Refused(f", line {line}: the key {shown(name)} appears twice")
        found[name] = _plain(value)
    return found


_SCALARS = yaml.constructor.SafeConstructor()


def _scalar(node: yaml.ScalarNode) -> Any:
    kind, text = node.tag.rpartition(":")[2], str(node.value)
    line = node.start_mark.line + 1
    if kind in ("int", "float") and len(text) > LONGEST_NUMBER:
        raise _Refused(f", line {line}: a number with {len(text)} characters is too long")
    try:
        match kind:
            case "null":
                return None
            case "bool":
                return _SCALARS.construct_yaml_bool(node)
            case "int":
                return _SCALARS.construct_yaml_int(node)
            case "float":
                return _SCALARS.construct_yaml_float(node)
            case _:
                # Dates, and the merge key <<, are texts.
                return text
    except (ValueError, IndexError):
        raise _Refused(f", line {line}: {shown(text)} is no number") from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        raise _Refused(f": the key {shown(twice)} appears twice")
    return found


def _toml(text: str) -> dict[str, Any]:
    if _LONG_NUMBER.search(text):
        raise _Refused(f" has a number with more than {LONGEST_NUMBER} digits")
    return tomllib.loads(text)


def _integer(text: str) -> int:
    if len(text) > LONGEST_NUMBER:
        raise _Refused(f": a number with {len(text)} characters is too long")
    return int(text)


def _no_constant(name: str) -> None:
    raise _Refused(f" has {name}, which is no number in JSON")


def _check(content: Any) -> None:
    """Raise _Refused for a value that a document cannot have."""
    for value, level in _values(content):
        if level > DEEPEST:
            raise _Refused(f" is nested too deeply: at most {DEEPEST} levels are read")
        if isinstance(value, bool) or value is None:
            continue
        if isinstance(value, int):
            if not _LEAST <= value <= _MOST:
                raise _Refused(f" has the number {shown(value)}, and whole numbers have at most 64 bits")
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise _Refused(f" has the number {value}, and numbers must be finite")
        elif isinstance(value, str):
            if not value.isascii():
                _check_text(value)
        elif not isinstance(value, dict | list):
            raise _Refused(f" has {shown(str(value))}, a {type(value).__name__}: write it as a text, in quotes")


def _values(content: Any) -> Iterator[tuple[Any, int]]:
    """Every value, keys included, with its level; without recursion."""
    waiting = [(content, 1)]
    while waiting:
        value, level = waiting.pop()
        yield value, level
        if level > DEEPEST:
            return
        if isinstance(value, dict):
            waiting += ((each, level + 1) for pair in value.items() for each in pair)
        elif isinstance(value, list):
            waiting += ((each, level + 1) for each in value)


def _check_text(value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _Refused(f" has the text {shown(value)}, which is not Unicode (half of a surrogate pair)") from None


def _either(words: tuple[str, ...]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:200]
