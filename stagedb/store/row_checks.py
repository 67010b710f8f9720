"""Answers of a store are checked against the header of the statement: anybody may have written what they contain."""

import contextlib
import functools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stagedb.errors import StagedbError
from stagedb.inputs import shown
from stagedb.store.statements import Field, Statement

_TYPES: Mapping[str, frozenset[type]] = {
    "string": frozenset({str}),
    "integer": frozenset({int}),
    "float": frozenset({int, float}),
    "boolean": frozenset({bool}),
    "map": frozenset({dict}),
}


class DamagedError(StagedbError):
    """The store has a value that stagedb does not write."""


class DamageWarning(UserWarning):
    """Something in the store is damaged and was left out."""


def check_row(statement: Statement, row: Mapping[str, Any]) -> None:
    """Raise DamagedError, which names column and value, for a row that does not have the types of the header."""
    for name, depth, optional, types in _columns(statement.columns):
        value = row.get(name)
        if value is None:
            if not optional:
                raise DamagedError(f"{name} of {_whose(row)} is missing ({statement.name})")
        elif not _is(value, depth, types):
            raise DamagedError(f"{name} of {_whose(row)} is {shown(value)}, which is not possible ({statement.name})")


@functools.cache
def _columns(fields: tuple[Field, ...]) -> tuple[tuple[str, int, bool, frozenset[type]], ...]:
    """Name, depth of lists, whether null is allowed, and the types of the values, for each column."""
    return tuple(
        (field.name, field.type.count("[]"), field.type.endswith("?"), _TYPES[field.type.rstrip("[]?")])
        for field in fields
    )


def _is(value: Any, depth: int, types: frozenset[type]) -> bool:
    if depth == 0:
        return type(value) in types
    if type(value) is not list:
        return False
    if depth == 1:
        # Lists have nulls where single values may be absent.
        return {*map(type, value)} <= types | {type(None)}
    return all(each is None or _is(each, depth - 1, types) for each in value)


def _whose(row: Mapping[str, Any]) -> str:
    """What a row is of, as far as it has a name or an id."""
    for key in ("id", "name"):
        if isinstance(row.get(key), str):
            return shown(row[key])
    return "an answer"


def warn_of(damage: str) -> None:
    """Warn about damage that was left out; each text once in a process."""
    warnings.warn(damage, DamageWarning, stacklevel=3)


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Turns each error that damaged content can cause into one that names what is damaged, and what to do."""
    try:
        yield
    except DamagedError as error:
        raise DamagedError(f"{what} is damaged in the store: {error}. {_WAY_OUT}") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        reason = f"{type(error).__name__}: {shown(str(error))}"
        raise DamagedError(f"{what} is damaged in the store ({reason}). {_WAY_OUT}") from error


_WAY_OUT = "Somebody else changed it: remove it with `stagedb rm`, and make it again"


def sound(statement: Statement, rows: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The rows with the types of the header. The others are left out with a warning."""
    for row in rows:
        try:
            check_row(statement, row)
        except DamagedError as damage:
            warn_of(f"left out: {damage}")
        else:
            yield row
