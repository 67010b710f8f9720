"""Answers of a store are checked against the header of the statement: anybody may have written what they contain."""

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stagedb.files import shown
from stagedb.files.stored_values import DamagedError
from stagedb.mentions import OPTIONS, call, shown_in
from stagedb.store.statements import Field, Statement

_TYPES: Mapping[str, frozenset[type]] = {
    "string": frozenset({str}),
    "integer": frozenset({int}),
    "float": frozenset({int, float}),
    "boolean": frozenset({bool}),
    "map": frozenset({dict}),
}


class DamageWarning(UserWarning):
    """Something in the store is damaged and was left out."""


@dataclass(frozen=True)
class _Column:
    """A column of a header. depth: levels of lists. types: those of its values."""

    name: str
    depth: int
    optional: bool
    types: frozenset[type]

    @classmethod
    def of(cls, field: Field) -> "_Column":
        return cls(field.name, field.type.count("[]"), field.type.endswith("?"), _TYPES[field.type.rstrip("[]?")])


def check_rows(statement: Statement, rows: Iterable[Mapping[str, Any]]) -> None:
    """Raise DamagedError, which names column and value, for a row that does not have the types of the header.

    rows: the result of the statement.
    """
    columns = [_Column.of(field) for field in statement.columns]
    for row in rows:
        _check(statement, columns, row)


def _check(statement: Statement, columns: Iterable[_Column], row: Mapping[str, Any]) -> None:
    for column in columns:
        value = row.get(column.name)
        if value is None:
            if not column.optional:
                raise DamagedError(f"{column.name} of {_whose(row)} is missing ({statement.name})")
        elif not _is(value, column.depth, column.types):
            raise DamagedError(
                f"{column.name} of {_whose(row)} is {shown(value)}, which is not possible ({statement.name})"
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
    """What an error calls a row: its id or name, if it has one."""
    for key in ("id", "name"):
        if isinstance(row.get(key), str):
            return shown(row[key])
    return "an answer"


def warn_of(damage: str) -> None:
    """Warn about damage that was left out; each text once in a process."""
    warnings.warn(shown_in(OPTIONS, damage), DamageWarning, stacklevel=3)


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


_WAY_OUT = f"Somebody else changed it: remove it with {call('rm')}, and make it again"


def sound(statement: Statement, rows: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The rows with the types of the header. The others are left out with a warning."""
    columns = [_Column.of(field) for field in statement.columns]
    for row in rows:
        try:
            _check(statement, columns, row)
        except DamagedError as damage:
            warn_of(f"left out: {damage}")
        else:
            yield row
