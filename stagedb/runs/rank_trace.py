"""One rank of a run that was recorded: what its device executed, who launched it, and its annotations."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

# Memory of a rank over a recording, as its allocators were seen: a bounded curve, its peak, and ends of phases.

Integers = npt.NDArray[np.int64]

MOST_POINTS = 512
"""Points of a curve. With more events, the fullest moment of several consecutive ones represents them."""


@dataclass(frozen=True, slots=True)
class MemoryMoment:
    """A moment of the fullest step, with what is held then.

    moment: start, forward_end, backward_end, step_end, forward_peak, backward_peak, optimizer_peak or peak, as in the
    memory of a plan. bytes: allocated. time, until: ns since 1970 by the rank's clock, until the end of the operator.
    phase: forward, backward or optimizer. operator: the one that runs at a peak; None if none is around it.
    """

    moment: str
    bytes: int
    time: int
    until: int
    phase: str
    operator: str | None


@dataclass(frozen=True)
class AllocatedMemory:
    """Memory of a device, or of the host, over a recording.

    place: `device 0`, or `host`. absolute: whether bytes are all that the process holds; else they are those that were
    allocated since the recording began, less what was released of them. events: how many there are. time: ns since 1970
    by the rank's clock, ascending; allocated: bytes from then on, the peak exact; at most `MOST_POINTS`. reserved: the
    most that the allocator held of its device; None if unknown. step: number of the fullest step; None without steps.
    moments: of this step; the last one is its peak.
    """

    place: str
    absolute: bool
    events: int
    time: Integers
    allocated: Integers
    reserved: int | None
    step: int | None
    moments: tuple[MemoryMoment, ...]

    @property
    def peak(self) -> MemoryMoment:
        """The moment at which the most is allocated."""
        return self.moments[-1]

    def later(self, ns: int) -> "AllocatedMemory":
        """The memory with all times counted from another begin. ns: what is added to each time."""
        moments = tuple(replace(each, time=each.time + ns, until=each.until + ns) for each in self.moments)
        return replace(self, time=self.time + ns, moments=moments)


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


# Process groups of a rank, as PyTorch's profiles and execution traces list them.


def process_groups(rows: Any, world: int) -> tuple[ProcessGroup, ...]:
    """The groups of a list with `pg_name`, `pg_desc` and `ranks`, in its order, which is that of their making.

    rows: of a file, of any form. world: ranks of the job, which a group without a list has; 0: not known.
    """
    found = []
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, dict) or "pg_name" not in row:
            continue
        ranks = row.get("ranks")
        named = isinstance(ranks, list) and all(type(each) is int and each >= 0 for each in ranks)
        members = tuple(ranks) if named and ranks else tuple(range(world))
        description = str(row.get("pg_desc") or "")
        found.append(ProcessGroup(str(row["pg_name"]), "" if description == "undefined" else description, members))
    return tuple(found)


def in_group(collective: RecordedCollective, group: ProcessGroup) -> RecordedCollective:
    """A collective with the name, description and ranks of its process group."""
    size = len(group.ranks) or None
    return replace(collective, group=group.name, description=group.description, ranks=group.ranks, size=size)


# Shapes of the inputs of operators as one text, such as `[[768,384],[384,96]]`, for all files that have some.

_LONGEST = 500
"""Characters of a text: those of lists of all parameters of a model are longer."""

_Shape = list[int | list[int | list[int]]]

_decode = msgspec.json.Decoder(list[_Shape]).decode
_encode = msgspec.json.Encoder().encode


def input_shapes(written: bytes) -> str | None:
    """The text of shapes in JSON: one a tensor, a list of them a list of tensors, and `[]` for a number.

    None for what is no such list, or has no input; an empty text for shapes that take more than 500 characters.
    written: the JSON of an event's `Input Dims`.
    """
    try:
        found = _decode(written)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    text = _encode(found).decode()
    return None if not found else text if len(text) <= _LONGEST else ""
