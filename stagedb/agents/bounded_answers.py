"""Answers of tools: JSON of bounded size, which has a note for all that is not in it, with the call that gets the rest.

Texts of a store are those of strangers, and JSON has all but ASCII in them escaped: nothing in it is invisible.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from stagedb.api import Rows
from stagedb.errors import UsageError
from stagedb.mentions import Word

MOST_BYTES: Final = 10_000_000
LEAST_BYTES: Final = 2_000
MOST_SKIPPED: Final = 100_000
"""Rows that a caller may skip."""

_TEXTS = (2_000, 400, 80)
"""Characters of the longest text, tried in turn until an answer is small enough; lists are as much shorter."""
_ITEMS = 20
"""Characters of a text for which a list has one value."""
_FACTS = 0.5
"""The share of an answer that facts may take where there are rows too."""


@dataclass(frozen=True)
class AnswerLimits:
    """Bounds of every tool.

    rows: the most rows of an answer. bytes: its size. seconds: how long a query may take, and how long a tool that
    computes tries plans. asking, computing: calls of each kind that are answered at the same time; others wait for at
    most twice the seconds.
    """

    rows: int = 1_000
    bytes: int = 60_000
    seconds: float = 60.0
    asking: int = 4
    computing: int = 1

    def __post_init__(self) -> None:
        if not LEAST_BYTES <= self.bytes <= MOST_BYTES:
            raise UsageError(
                f"an answer has {LEAST_BYTES:,} to {MOST_BYTES:,} bytes, not {self.bytes:,}: {Word('bytes')}"
            )


@dataclass(frozen=True)
class PagedTable:
    """Some rows of a table, as one answer has them.

    rows: from the first row that is wanted on. skipped: rows before them. wanted: how many rows are wanted. more:
    whether there are rows after those that are here. rest: the tool that has the rest, in words; empty for the same
    tool with another `skip`.
    """

    rows: Rows
    skipped: int = 0
    wanted: int = 100
    more: bool = False
    rest: str = ""


@dataclass(frozen=True)
class ToolAnswer:
    """What a tool found. facts: values by name. tables: by name; one without a name is the answer itself. notes: what a
    reader has to know, in sentences."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, PagedTable] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def text(self, most: int) -> str:
        """The answer as JSON. most: bytes that it has at most."""
        notes = [_shortened(note, _TEXTS[0]) for note in self.notes][:_ITEMS]
        room = most - len(_json({"notes": notes}))
        facts, fewer = _fitting(dict(self.facts), int(room * (_FACTS if self.tables else 1)) - 200)
        if fewer:
            notes.append(fewer)
        found = dict(facts)
        room -= len(_json(facts))
        for place, (name, table) in enumerate(self.tables.items()):
            written, left = _written(table, name, room // (len(self.tables) - place))
            room -= len(_json(written))
            notes += left
            found |= {name: written} if name else written
        return _json(found | ({"notes": notes} if notes else {}))


def paged(found: Rows, skip: int, wanted: int, rest: str = "") -> PagedTable:
    """A part of a table that is in memory as a whole.

    skip: rows before it. wanted: its rows. rest: the tool that has the rest.
    """
    return PagedTable(_from(found, skip), skip, wanted, found.cut, rest)


def _from(found: Rows, skip: int) -> Rows:
    return Rows(found.columns, found.rows[skip:], units=found.units)


def _written(table: PagedTable, name: str, room: int) -> tuple[dict[str, Any], list[str]]:
    """The rows that fit, and what is not there, in sentences."""
    columns = [_shortened(column, 200) for column in table.rows.columns]
    units = {name: unit for name, unit in table.rows.units.items() if name in table.rows.columns}
    head = {"columns": columns, **({"units": units} if units else {})}
    if len(_json(head)) > room // 2:
        raise UsageError(f"the answer has {len(columns)} columns, too many for answers of this server: ask for fewer")
    room -= len(_json(head)) + 400  # room for the notes
    rows: list[list[Any]] = []
    notes = []
    where = f"{name}: " if name else ""
    for row in table.rows.rows[: table.wanted]:
        cells = [_plain(value) for value in row]
        if len(_json(cells)) >= room and not rows:
            cells = _short_row(cells, room)
            notes.append(f"{where}long values of the row are shortened: ask for fewer columns, or for a part of a text")
        if len(_json(cells)) >= room:
            break
        room -= len(_json(cells)) + 1
        rows.append(cells)
    if not table.rows.rows and table.skipped:
        notes.append(f"{where}there are no rows after the first {table.skipped:,}")
    if table.more or len(rows) < len(table.rows.rows):
        why = "" if len(rows) >= min(table.wanted, len(table.rows.rows)) else ", as more bytes do not fit"
        last = table.skipped + len(rows)
        known = "" if table.more else f" of {table.skipped + len(table.rows.rows):,}"
        rest = table.rest or f"the same call with skip {last} has the next"
        notes.append(f"{where}rows {table.skipped + 1:,} to {last:,}{known}{why}: {rest}")
    return {**head, "rows": rows}, notes


def _short_row(cells: list[Any], room: int) -> list[Any]:
    """A row whose JSON has less than `room` bytes. Raises UsageError if its values are too many for that."""
    for longest in _TEXTS:
        found = [_shortened(each, longest) for each in cells]
        if len(_json(found)) < room:
            return found
    raise UsageError(
        f"a row of the answer has {len(cells)} values, more than answers of this server have room for: ask for fewer "
        "columns"
    )


def _fitting(value: Any, room: int) -> tuple[Any, str]:
    """A value whose JSON has at most `room` bytes, and what was left out, in a sentence; empty for nothing."""
    plain = _plain(value)
    if len(_json(plain)) <= room:
        return plain, ""
    for longest in _TEXTS:
        found = _shortened(plain, longest)
        if len(_json(found)) <= room:
            return found, "long texts and lists are shortened: what ends in … has more in the store"
    return _fewer(found, room), "texts and lists are shortened, and some values left out: the answer was too long"


def _fewer(value: Any, room: int) -> Any:
    """The first values of a map or a list that fit."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    kept: dict[Any, Any] = {}
    for key, each in pairs:
        room -= len(_json({str(key): each}))
        if room < 0:
            break
        kept[key] = each
    return kept if isinstance(value, dict) else list(kept.values())


def _shortened(value: Any, longest: int) -> Any:
    """A value with its long texts and lists cut."""
    most = max(1, longest // _ITEMS)
    if isinstance(value, str):
        return value if len(value) <= longest else f"{value[:longest]}… ({len(value):,} characters)"
    if isinstance(value, list):
        kept = [_shortened(each, longest) for each in value[:most]]
        return kept if len(value) <= most else [*kept, f"… ({len(value):,} values)"]
    if isinstance(value, dict):
        pairs = list(value.items())[: 4 * most]
        return {_shortened(key, longest): _shortened(each, longest) for key, each in pairs}
    return value


def _plain(value: Any) -> Any:
    """A value as JSON has it. Numbers that JSON lacks, and all other kinds of values, are texts."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    return str(value)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
