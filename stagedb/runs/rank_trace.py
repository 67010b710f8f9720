"""One rank of a run that was recorded: what its device executed, who launched it, and its annotations."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from stagedb.runs.memory_record import AllocatedMemory

Integers = npt.NDArray[np.int64]

Places = npt.NDArray[np.signedinteger[Any]]
"""Numbers of things, of as few bytes as are enough."""

_AT_ONCE = 1 << 12
"""Entries of columns that are lists at a time: numbers in lists need several times the memory."""


_PART = 1 << 16


def rows_of(*columns: "npt.NDArray[Any]") -> Iterator[tuple[Any, ...]]:
    """The entries of columns, those at one place together, as Python's own numbers."""
    for first in range(0, len(columns[0]), _AT_ONCE):
        yield from zip(*(column[first : first + _AT_ONCE].tolist() for column in columns), strict=True)


def parts_of(count: int) -> Iterator[slice]:
    """Parts of a column that are computed together where many columns follow from it. count: its rows."""
    return (slice(first, first + _PART) for first in range(0, count, _PART))


def rows_at(places: Places, *columns: "npt.NDArray[Any]") -> Iterator[tuple[Any, ...]]:
    """Places, and the entries of columns there, as Python's own numbers."""
    for first in range(0, len(places), _AT_ONCE):
        part = places[first : first + _AT_ONCE]
        yield from rows_of(part, *(column[part] for column in columns))


PHASES = ("forward", "backward", "recompute", "optimizer", "unknown")
"""Phases of a step; `DeviceOps.phase` has their places. Unknown: neither an operator nor an annotation is around it."""

FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, UNKNOWN = range(len(PHASES))

NONE = -1
"""In a column: the op has none."""


@dataclass(frozen=True, slots=True)
class RecordedCollective:
    """What a profiler recorded of a collective or a message.

    kind: all_reduce, send … group: name of the process group; empty: unknown. description: what a framework calls the
    group, such as `mesh_tp`. ranks: global ranks of the group, empty if unknown. size: ranks of the group. dtype: as
    PyTorch writes it, such as `BFloat16`. sent, received: elements that go in and that come out. sequence: its number
    in the group. peer: the other rank of a message. node: number of the call, by which an execution trace has it.
    worker: place of gloo's thread that ran it among those of its rank. gradients: of a bucket of gradients the paths of
    the modules whose weights have them, each with its elements, in the order in which they became ready.
    """

    kind: str
    group: str = ""
    description: str = ""
    ranks: tuple[int, ...] = ()
    size: int | None = None
    dtype: str = ""
    sent: int | None = None
    received: int | None = None
    sequence: int | None = None
    peer: int | None = None
    node: int | None = None
    worker: int | None = None
    gradients: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class ProcessGroup:
    """A process group of a rank, as its trace lists it. description: a framework's name for it. ranks: global ranks."""

    name: str
    description: str
    ranks: tuple[int, ...]


class BackgroundOp(msgspec.Struct, frozen=True, gc=False):
    """Work that a thread of the host does while the program goes on. start, end: in ns.

    stream: what runs such work in order. moment, thread: when and on which thread the program asked for it. worker: the
    thread that does it, whose operators are part of it; None: the program's. Threads are places.
    """

    name: str
    start: int
    end: int
    stream: Hashable
    moment: int
    thread: int
    worker: int | None
    collective: RecordedCollective


class Annotation(msgspec.Struct, frozen=True, gc=False):
    """A range that a program named. start, end: ns since 1970 by the rank's clock. thread: place of its thread."""

    name: str
    start: int
    end: int
    thread: int


@dataclass(frozen=True)
class DeviceOps:
    """Columns of the ops that a device executed, one entry an op, by start; times in ns since 1970 by the rank's clock.

    stream: place in `RankTrace.streams`. name: place in `RankTrace.names`. category: place in `CATEGORIES`. bytes: of a
    copy. collective: place in `RankTrace.collectives`. launched: when the call that launched it began. synchronised:
    place of the op whose end the host had waited for last before that. launcher: the innermost operator around this
    call, as a place in `names`. operator: its number. shapes: those of the innermost operator around the call that has
    some, as a place in `RankTrace.shapes`. module: the innermost module that launched it, or
    that contains all whose gradients it reduces, as a place in `RankTrace.modules`. Ops that were launched before the
    recording have the launcher and the module of the ops that they repeat. annotation: the innermost annotation of the
    program around this call, as a place in `RankTrace.annotations`. step: the profiler's number of the step. phase:
    place in `PHASES`. `NONE` where there is none.
    """

    start: Integers
    end: Integers
    stream: Places
    name: Places
    category: Places
    bytes: Integers
    collective: Places
    launched: Integers
    synchronised: Places
    launcher: Places
    shapes: Places
    module: Places
    operator: Integers
    annotation: Places
    step: Integers
    phase: Places

    def __len__(self) -> int:
        return len(self.start)


HOST, BACKGROUND = "host", "background"

CATEGORIES = ("kernel", "memcpy", "memset", HOST, BACKGROUND)
"""What an op is: a kernel, a copy, a fill, or in a trace without devices an operator on a thread of the program, or
what another thread does for it."""


@dataclass(frozen=True)
class RecordedOrder:
    """What a file without times has of the ops of a rank besides their order, one entry an op.

    dtypes: of the first tensor that goes in, as PyTorch writes it; empty: none. callers: the operator that called the
    op, as a place in `RankTrace.names`, or `NONE`. waits: pairs of places: an op, and one that it depends on.
    """

    dtypes: tuple[str, ...]
    callers: tuple[int, ...]
    waits: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class RankTrace:
    """One rank of a run.

    rank, world: its number and the number of ranks, None if the file has neither. digest: sha256 of the file. tool:
    what recorded it, kineto or nsight. devices:
    names of the accelerators. streams: names, such as `stream 7`. names: of operators and kernels. shapes: of the
    inputs of operators, as `input_shapes` writes them; empty: they are longer than it writes. modules: paths. events:
    how many there are of each category of the file. left_out: what was not understood, as sentences. process: its
    number in the system. groups: those that it is in, in the order in which they were made. numbered: whether numbers
    of operators are those that execution traces have, and no others. memory: of its devices and its host, if recorded.
    order: of a file without times, in which `start` and `end` of the ops are places and no times; None: they are times.
    """

    rank: int | None
    world: int | None
    digest: str
    tool: str
    devices: tuple[str, ...]
    streams: tuple[str, ...]
    names: tuple[str, ...]
    ops: DeviceOps
    collectives: tuple[RecordedCollective, ...]
    annotations: tuple[Annotation, ...]
    events: Mapping[str, int]
    left_out: tuple[str, ...] = ()
    process: int | None = None
    groups: tuple[ProcessGroup, ...] = ()
    shapes: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    numbered: bool = False
    memory: tuple[AllocatedMemory, ...] = ()
    order: RecordedOrder | None = None
