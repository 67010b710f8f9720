"""Events of PyTorch's profiler as a file has them: their form, and their numbers, which are exact.

Times are decimal numbers of microseconds, some since 1970. Most files have them such that floats hold every nanosecond,
and are read a column at a time; events of the others have decimal numbers.
"""

from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache
from operator import attrgetter
from types import NoneType
from typing import Any, Union, cast

import msgspec
import numpy as np

from stagedb.runs.kernel_names import collective_kind
from stagedb.runs.rank_trace import NONE, Integers, RecordedCollective

Scalar = int | float | str | bool | None
Number = int | float | str | None

_LONGEST = 9_000_000_000_000_000
"""Microseconds: times of more do not fit into 64 bits as nanoseconds."""

_EXACT = 1 << 43
"""Microseconds: floats below are closer to each other than a nanosecond."""

_LARGEST = 1 << 62

NO_TIME = "it has no time, or one that is not possible"
"""Why an event is left out."""


NO_SHAPES = msgspec.Raw()
"""The shapes of an event without any."""


class Arguments(msgspec.Struct, gc=False):
    """Arguments of an event that are read; profilers of different ages write numbers as texts, too."""

    correlation: Scalar = None
    external: Scalar = msgspec.field(name="External id", default=None)
    stream: Scalar = None
    device: Scalar = None
    bytes: Scalar = None
    moved: Scalar = msgspec.field(name="size", default=None)
    size_changed: Scalar = msgspec.field(name="Bytes", default=None)
    total_allocated: Scalar = msgspec.field(name="Total Allocated", default=None)
    total_reserved: Scalar = msgspec.field(name="Total Reserved", default=None)
    device_type: Scalar = msgspec.field(name="Device Type", default=None)
    device_id: Scalar = msgspec.field(name="Device Id", default=None)
    collective: Scalar = msgspec.field(name="Collective name", default=None)
    group: Scalar = msgspec.field(name="Process Group Name", default=None)
    description: Scalar = msgspec.field(name="Process Group Description", default=None)
    ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    first: Scalar = msgspec.field(name="Global rank start", default=None)
    stride: Scalar = msgspec.field(name="Global rank stride", default=None)
    size: Scalar = msgspec.field(name="Group size", default=None)
    dtype: Scalar = None
    sent: Scalar = msgspec.field(name="In msg nelems", default=None)
    received: Scalar = msgspec.field(name="Out msg nelems", default=None)
    sequence: Scalar = msgspec.field(name="Seq", default=None)
    source: Scalar = msgspec.field(name="Src Rank", default=None)
    target: Scalar = msgspec.field(name="Dst Rank", default=None)
    number: Scalar = msgspec.field(name="Record function id", default=None)
    order: Scalar = msgspec.field(name="Sequence number", default=None)
    shapes: msgspec.Raw = msgspec.field(name="Input Dims", default=NO_SHAPES)


class Event(msgspec.Struct, gc=False):
    """An event of a profile in JSON, without its times. ph: its phase letter. cat: its category."""

    ph: str = ""
    cat: str | None = None
    name: Scalar = None
    pid: Scalar = None
    tid: Scalar = None
    args: Arguments | None = None


class FloatEvent(Event, gc=False):
    """An event of a file whose times floats hold. ts: its start. dur: its length."""

    ts: Number = None
    dur: Number = None


class DecimalEvent(Event, gc=False):
    """An event of any other file."""

    ts: Decimal | None = None
    dur: Decimal | None = None


def _arguments(name: str, *fields: str) -> Any:
    """A form of arguments of which no other fields than these are read; the others have their defaults."""
    every = {each.name: each for each in msgspec.structs.fields(Arguments)}
    defaults = dict(zip(Arguments.__struct_fields__, Arguments.__struct_defaults__, strict=True))
    forms = {each: msgspec.field(name=every[each].encode_name, default=defaults[each]) for each in fields}
    return msgspec.defstruct(
        name,
        [(each, every[each].type, form) for each, form in forms.items()],
        namespace={each: default for each, default in defaults.items() if each not in fields},
        gc=False,
    )


_OF_COLLECTIVES = (
    *("collective", "dtype", "sent", "received", "first", "stride", "size", "group", "description", "ranks"),
    *("sequence", "source", "target"),
)
COLLECTIVE_VALUES = attrgetter(*_OF_COLLECTIVES)
"""Gets what arguments record of a collective."""

_OpArguments = _arguments("OpArguments", "device", "stream", "correlation", "bytes", *_OF_COLLECTIVES)
_MtiaArguments = _arguments("MtiaArguments", "device", "stream", "correlation", "moved", *_OF_COLLECTIVES)
_OperatorArguments = _arguments("OperatorArguments", "external", "number", "order", "shapes", *_OF_COLLECTIVES)
_CallArguments = _arguments("CallArguments", "correlation")
_AnnotationArguments = _arguments("AnnotationArguments", "number")
_MemoryArguments = _arguments(
    "MemoryArguments", "size_changed", "total_allocated", "total_reserved", "device_type", "device_id"
)

CALLS = (
    *("cuda_runtime", "cuda_driver", "mtia_runtime"),
    *("xpu_runtime", "xpu_driver", "privateuse1_runtime", "privateuse1_driver"),
)
"""Categories of the calls that launch what a device executes."""

_ARGUMENTS = {
    **dict.fromkeys(("kernel", "gpu_memcpy", "gpu_memset"), _OpArguments),
    "mtia_ccp_events": _MtiaArguments,
    **dict.fromkeys(CALLS, _CallArguments),
    "cpu_op": _OperatorArguments,
    "user_annotation": _AnnotationArguments,
    "cpu_instant_event": _MemoryArguments,
}
"""Arguments that are read of events of known categories."""

_LEFT_OUT = (
    "ac2g",
    "fwdbwd",
    "async_cpu_to_gpu",
    "async_gpu",
    "gpu_user_annotation",
    "cuda_sync",
    "cuda_event",
    "overhead",
    "Trace",
)

_OF_OTHER_KINDS = (
    *("external_correlation", "cuda_profiler_range", "xpu_scope_profiler", "xpu_sync", "glow_runtime"),
    *("mtia_insight", "mtia_counters", "python_function", "cpu_instant_event"),
)

WITHOUT_OPS = frozenset((*_LEFT_OUT, *_OF_OTHER_KINDS))
"""Categories of events that are none of an op, nor of what launched one. Those of libkineto's `ActivityType.h`, and of
flows."""


def _known_events(number: Any) -> Any:
    """A form for each of the categories that most events have, with no more than is read of these.

    A trace with stacks needs a quarter less time than with the form of any event. number: the type of times.
    """
    times = [("name", Scalar, None), ("pid", Scalar, None), ("tid", Scalar, None)]
    times += [(name, number, None) for name in ("ts", "dur")]
    parts: list[tuple[tuple[str, ...], list[Any], dict[str, Any]]] = [
        (("python_function",), times, {"args": None}),
        (_LEFT_OUT, [], {"name": None, "args": None}),
    ]
    parts += [((category,), [*times, ("args", form | None, None)], {}) for category, form in _ARGUMENTS.items()]
    return Union[  # noqa: UP007  # of forms that are made here: `|` joins those that a reader sees
        tuple(
            msgspec.defstruct(
                f"Event_{category}",
                [("ph", str, ""), *fields],
                tag_field="cat",
                tag=category,
                namespace={"cat": category, **fixed},
                gc=False,
            )
            for categories, fields, fixed in parts
            for category in categories
        )
    ]


KNOWN_FLOAT_EVENTS, KNOWN_DECIMAL_EVENTS = map(_known_events, (Number, Decimal | None))
"""Forms of events of known categories, as `FloatEvent` and `DecimalEvent` are of any."""


def nanoseconds(microseconds: list[Any]) -> Integers | None:
    """Times in ns, of numbers of microseconds; None if one is no possible time.

    None also if a float may not hold one of them to the ns.
    """
    kinds = set(map(type, microseconds))
    if not kinds <= {int, float}:
        return None
    try:
        column = np.fromiter(microseconds, np.float64 if float in kinds else np.int64, len(microseconds))
    except OverflowError:
        return None
    if not (np.abs(column) < _LONGEST).all():
        return None
    if column.dtype.kind == "i":
        return column.astype(np.int64) * 1000
    whole = np.floor(column)
    found: Integers = whole.astype(np.int64) * 1000 + np.rint((column - whole) * 1000).astype(np.int64)
    exact = (np.abs(column) < _EXACT).all() and (found / 1000 == column).all()
    return found if exact else None


def decimal_nanoseconds(microseconds: list[Any]) -> Integers | None:
    """Times in ns, of decimal numbers of microseconds. None if one of them is no possible time."""
    try:
        found = np.array([int(each * 1000) for each in microseconds], np.int64)
    except (TypeError, OverflowError, ValueError, ArithmeticError):
        return None
    return found if (np.abs(found) < _LONGEST * 1000).all() else None


def decimal_times(event: Any) -> tuple[int, int]:
    """Start and end in ns of an event with decimal times. Raises ValueError if it has none, or one not possible."""
    start, length = event.ts, event.dur or Decimal(0)
    if start is None or not -_LONGEST < start < _LONGEST or not 0 <= length < _LONGEST:
        raise ValueError(NO_TIME)
    begin = int(start * 1000)
    return begin, begin + int(length * 1000)


def integers(values: list[Scalar]) -> Integers:
    """Values as `integer` returns them, with `NONE` for what is none. values: one an event, as its JSON has it."""
    kinds = set(map(type, values))
    if kinds == {NoneType}:
        return np.full(len(values), NONE, np.int64)
    if kinds <= {int, NoneType}:
        known = [NONE if each is None else each for each in values] if NoneType in kinds else values
        with suppress(OverflowError):
            column = np.fromiter(cast(list[int], known), np.int64, len(known))
            if ((column < _LARGEST) & (column > -_LARGEST)).all():
                return column
    return np.array([integer(each, NONE) for each in values], np.int64)


def integer(value: Scalar, otherwise: int) -> int:
    """A whole number, which may be written as a text. otherwise: returned for any other value."""
    if isinstance(value, str) and value.removeprefix("-").isdecimal() and len(value) < 19:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST:
        return value
    return otherwise


def recorded(args: Arguments) -> RecordedCollective | None:
    """What the arguments of an event record of a collective."""
    if args.collective is None:
        return None
    name = str(args.collective)
    kind = collective_kind(name) or name[:60]
    source, target = _count(args.source), _count(args.target)
    return RecordedCollective(
        kind,
        group="" if args.group is None else str(args.group),
        description="" if args.description in (None, "undefined") else str(args.description),
        ranks=_ranks(args),
        size=_count(args.size),
        dtype="" if args.dtype is None else str(args.dtype),
        sent=_count(args.sent),
        received=_count(args.received),
        sequence=_count(args.sequence),
        peer=target if kind == "send" else source if kind == "recv" else None,
    )


def _count(value: Scalar) -> int | None:
    found = integer(value, NONE)
    return None if found < 0 else found


def _ranks(args: Arguments) -> tuple[int, ...]:
    """The ranks of a group: from the list, unless it is cut, else from the first one, the stride and the size."""
    size = _count(args.size)
    ranks = _listed(args.ranks) if isinstance(args.ranks, list) else _written(str(args.ranks or ""))
    if NONE not in ranks and (size is None or len(ranks) == size):
        return ranks
    first, stride = _count(args.first), _count(args.stride)
    if first is None or stride is None or size is None or not 0 < size <= 1 << 20:
        return ()
    return tuple(first + stride * each for each in range(size))


@lru_cache(maxsize=1 << 12)
def _written(text: str) -> tuple[int, ...]:
    """The numbers of a list that is written as a text."""
    return _listed(text.strip("[]() ").split(","))


def _listed(words: Sequence[Any]) -> tuple[int, ...]:
    return tuple(integer(each.strip() if isinstance(each, str) else each, NONE) for each in words)
