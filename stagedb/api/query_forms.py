"""Texts of a form as the values of a query's parameters."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import parse_json, shown
from stagedb.store import Field

_WORDS: Mapping[str, bool] = {"true": True, "false": False}
_LARGEST = 2**63


def value_of(field: Field, text: str) -> Any:
    """The value of a parameter that a person wrote as text. Lists are separated by commas, or JSON.

    Raises UsageError, which names the parameter and its type, for a text of another type.
    """
    kind = field.type.rstrip("?")
    if not text and field.type.endswith("?"):
        return None
    if kind.endswith("[]"):
        return _list(field, kind.removesuffix("[]"), text)
    if kind == "map" or kind.endswith("]"):
        return parse_json(text, field.name)
    return _plain(field, kind, text)


def given_value(text: str, name: str) -> Any:
    """The value of a parameter of a free query, which has no type: the text is read as JSON, else it is the value.

    Raises UsageError, which begins with the name, for JSON that no store can keep.
    """
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    return parse_json(text, name)


def _list(field: Field, kind: str, text: str) -> list[Any]:
    if text.startswith("["):
        found = parse_json(text, field.name)
        if not isinstance(found, list):
            raise _wrong(field, text)
        return [_plain(field, kind, each if isinstance(each, str) else json.dumps(each)) for each in found]
    return [_plain(field, kind, each.strip()) for each in text.split(",")]


def _plain(field: Field, kind: str, text: str) -> Any:
    read: Mapping[str, Callable[[str], Any]] = {"integer": _integer, "float": float, "boolean": _boolean}
    try:
        return read.get(kind, str)(text)
    except (ValueError, KeyError):
        raise _wrong(field, text) from None


def _integer(text: str) -> int:
    value = int(text[:40])
    if len(text) > 40 or not -_LARGEST <= value < _LARGEST:
        raise ValueError
    return value


def _boolean(text: str) -> bool:
    return _WORDS[text.lower()]


def _wrong(field: Field, text: str) -> UsageError:
    unit = "" if field.unit is None else f" in {field.unit}"
    return UsageError(f"{field.name} is of type {field.type}{unit}, and {shown(text)} is not: {field.description}")
