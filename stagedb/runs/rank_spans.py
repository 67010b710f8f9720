"""Spans that a recording has of one rank, as they are read, in any order: a column for each of their properties."""

from array import array
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from stagedb.runs.rank_trace import NONE, Annotation, BackgroundOp, Integers, Places, RecordedCollective, parts_of

_TYPES = {
    "start": "q",
    "end": "q",
    "place": "i",
    "name": "i",
    "correlation": "q",
    "collective": "i",
    "shapes": "i",
    "number": "q",
    "sequence": "q",
    "bytes": "q",
    "category": "b",
}
"""The columns of spans, and how large their numbers are: as codes of `array`."""

KeyT = TypeVar("KeyT", bound=Hashable)


class Numbering(dict[KeyT, int]):
    """Numbering of things, in the order in which they are asked for first."""

    def __missing__(self, key: KeyT) -> int:
        place = self[key] = len(self)
        return place

    def of(self, others: "Numbering[KeyT]") -> "npt.NDArray[np.int32]":
        """The places of others, by their places there; the last entry is `NONE`, which is at that place, too."""
        return np.array([*(self[key] for key in others), NONE], np.int32)


@dataclass
class SpanColumns:
    """The spans of one kind that a profiler recorded, as columns of integers by name; those without a use are empty."""

    columns: "dict[str, array[int]]" = field(
        default_factory=lambda: {name: array(code) for name, code in _TYPES.items()}
    )

    def __len__(self) -> int:
        return len(self.columns["start"])

    def add(self, **values: int) -> None:
        """Add a span. values: its value of each column."""
        for name, value in values.items():
            self.columns[name].append(value)

    def extend(self, **values: "npt.NDArray[Any]") -> None:
        """Add spans, with their values of each column."""
        for name, column in values.items():
            self.columns[name].frombytes(column.astype(np.dtype(_TYPES[name]), copy=False).tobytes())

    def add_all(self, others: "SpanColumns", places: "Mapping[str, npt.NDArray[Any]]") -> None:
        """Add other spans. places: of columns that have places, the new place of each."""
        for name in self.columns:
            column = others.column(name)
            self.extend(**{name: places[name][column] if name in places else column})

    def column(self, name: str) -> "npt.NDArray[Any]":
        """A column, which must not be added to as long as this is in use. name: one of the columns."""
        column = self.columns[name]
        return np.frombuffer(column, np.dtype(_TYPES[name])) if column else np.empty(0, np.dtype(_TYPES[name]))


@dataclass
class RankSpans:
    """Spans of one rank. table: of names, each with its place. threads, streams, numbers, shapes, paths: places, too.

    modules: calls of modules; their paths are in `paths`. unknown_buckets: reduced gradients whose modules are not
    known.

    background: work of threads that are not the program's. asking, waiting: how names of operators begin that ask for
    such work, and that return when it is done.
    """

    table: Numbering[str] = field(default_factory=Numbering)
    threads: Numbering[Hashable] = field(default_factory=Numbering)
    streams: Numbering[tuple[int, Hashable]] = field(default_factory=Numbering)
    device: SpanColumns = field(default_factory=SpanColumns)
    calls: SpanColumns = field(default_factory=SpanColumns)
    host: SpanColumns = field(default_factory=SpanColumns)
    annotations: list[Annotation] = field(default_factory=list)
    background: list[BackgroundOp] = field(default_factory=list)
    asking: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    numbers: Numbering[RecordedCollective] = field(default_factory=Numbering)
    shapes: Numbering[str] = field(default_factory=Numbering)
    modules: SpanColumns = field(default_factory=SpanColumns)
    paths: Numbering[str] = field(default_factory=Numbering)
    unknown_buckets: int = 0

    def place(self, collective: RecordedCollective | None) -> int:
        """The place of a collective in `numbers`, or `NONE`."""
        return NONE if collective is None else self.numbers[collective]


# Which spans of a thread a moment is inside: spans nest, as calls do.


@dataclass(frozen=True)
class NestedSpans:
    """Spans of threads. start, end: in ns. thread: number of the one that each is on.

    A span that begins inside another one and ends after it counts as inside: clocks of profilers are not that exact.
    """

    start: Integers
    end: Integers
    thread: "npt.NDArray[Any]"

    @cached_property
    def order(self) -> Places:
        """Places by thread and start. If two begin together, the longer one contains the other one."""
        return np.lexsort((-self.end, self.start, self.thread)).astype(np.int32)

    @cached_property
    def above(self) -> Places:
        """For each span the innermost one of its thread that contains it, as a place, or `NONE`."""
        order, count = self.order, len(self.start)
        # `inside` has a candidate for each span: all spans between the candidate and the span end before the span
        # begins.
        inside = np.arange(-1, count - 1, dtype=np.int32)
        inside[np.flatnonzero(np.diff(self.thread[order], prepend=-1))] = NONE
        every = np.arange(count, dtype=np.int32)
        left = np.concatenate([every[:0], *(self._ended(inside, every[part]) for part in parts_of(count))])
        while len(left):
            inside[left] = inside[inside[left]]
            left = self._ended(inside, left)
        found = np.full(count, NONE, np.int32)
        within = inside != NONE
        found[order[within]] = order[inside[within]]
        return found

    def _ended(self, inside: Places, which: Places) -> Places:
        """Those of some spans that begin after the end of their candidate. inside, which: places in the order."""
        which = which[inside[which] != NONE]
        return which[self.end[self.order[inside[which]]] <= self.start[self.order[which]]]

    def around(self, moments: Integers, threads: "npt.NDArray[Any]") -> Places:
        """For each moment the innermost span around it on its thread, as a place, or `NONE`.

        moments: [ns]. threads: the thread of each, by its number.
        """
        found = np.full(len(moments), NONE, np.int32)
        if not len(self.start) or not len(moments):
            return found
        thread = self.thread[self.order]
        for each in np.unique(threads).tolist():
            mine = self.order[slice(*np.searchsorted(thread, (each, each + 1)))]
            here = np.flatnonzero(threads == each)
            if len(mine):
                # The last span that began before is the innermost one, or is inside what has ended since.
                last = np.searchsorted(self.start[mine], moments[here], side="right") - 1
                found[here] = np.where(last < 0, NONE, mine[last])
        left = np.flatnonzero(found != NONE)
        while len(left):
            left = left[self.end[found[left]] < moments[left]]
            found[left] = self.above[found[left]]
            left = left[found[left] != NONE]
        return found

    def inherited(self, own: Places, spans: Places) -> Places:
        """For some spans what each has, or else the nearest one around it that has one, or `NONE`.

        own: what each of all spans has, or `NONE`. spans: places, or `NONE`.
        """
        found = np.full(len(spans), NONE, own.dtype)
        if not len(own) or (own == NONE).all():
            return found
        at = spans.copy()
        left = np.flatnonzero(at != NONE)
        while len(left):
            found[left] = own[at[left]]
            left = left[found[left] == NONE]
            at[left] = self.above[at[left]]
            left = left[at[left] != NONE]
        return found
