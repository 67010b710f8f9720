"""What one rank computes and sends in a step: counts, and the order of messages, matmuls and attentions.

A record has it in `timeline`, run-length coded: `c3` is its collective with id 3, `m5` the item `m5` of
`matmuls_and_attention`, and `(a b)x32` means 32 times a, b. In a rank's trace the ids of nodes give the order.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple

from stagedb.files import shown
from stagedb.systems.cost_model import ORTHOGONALISATION, STEPS, orthogonalising_matmuls
from stagedb.traces import chakra_pb2 as pb
from stagedb.traces.trace_reading import TraceColumns

# What one rank computes and sends in a step: FLOPs by phase and kind, and counts of equal messages.


class CountedMessage(NamedTuple):
    """A kind of collective, or of one end of a send: `bytes_in` is this rank's operand, `bytes_out` its result."""

    phase: str
    kind: str
    axis: str
    dtype: str
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True)
class Counts:
    """What one rank computes and sends in a step.

    flops: by phase, and matmul or attention. messages: how many of each kind and size.
    """

    flops: Mapping[tuple[str, str], int] = field(default_factory=dict)
    messages: Counter[CountedMessage] = field(default_factory=Counter)


class CountDifference(NamedTuple):
    """A quantity of a record with their value and ours. They agree within `bound`, a share of theirs (0: exactly)."""

    quantity: str
    theirs: int
    ours: int
    bound: float = 0.0

    @property
    def agrees(self) -> bool:
        """Whether both are the same, or differ by less than the bound."""
        return abs(self.ours - self.theirs) <= self.bound * self.theirs


def compare(theirs: Counts, ours: Counts) -> Iterator[CountDifference]:
    """Compare the counts of a record with ours: every quantity that either side has."""
    for phase, kind in sorted({*theirs.flops, *ours.flops}):
        key = (phase, kind)
        yield CountDifference(f"FLOPs {phase} {kind}", theirs.flops.get(key, 0), ours.flops.get(key, 0))
    for message in sorted({*theirs.messages, *ours.messages}):
        quantity = (
            f"{message.kind} {message.phase} {message.axis} {message.dtype} {message.bytes_in} -> {message.bytes_out} B"
        )
        yield CountDifference(quantity, theirs.messages[message], ours.messages[message])


_WORD = re.compile(r"\(|\)x[0-9]+|[^\s()]+")


class Sent(NamedTuple):
    """A message in a rank's program order. size: bytes of the operand."""

    phase: str
    kind: str
    axis: str
    dtype: str
    size: int


class OrderedWork(NamedTuple):
    """A matmul or attention, in the order of issue. `dims` of a matmul is `[batch,] m, n, k` with m and n sorted."""

    kind: str
    dims: tuple[int, ...]


Event = Sent | OrderedWork


@dataclass(frozen=True)
class Compared:
    """The result of comparing two orders of events. differences: in messages, and in the work between two of them.

    exact: the work between messages is in the same order, too.
    """

    differences: tuple[CountDifference, ...]
    exact: bool


def work(kind: str, dims: Sequence[int]) -> OrderedWork:
    """A matmul or attention with its dimensions in one order: a matmul equals its transpose.

    kind: `matmul` or `attention`. dims: as the operator has them; of a matmul the batch, m, n, k.
    """
    if kind == "matmul":
        *batch, m, n, k = dims
        dims = (*batch, *sorted((m, n)), k)
    return OrderedWork(kind, tuple(dims))


def works(kind: str, dims: Sequence[int]) -> tuple[OrderedWork, ...]:
    """The matmuls and attentions of an operator, in order: an orthogonalisation has three in each step of a matrix.

    kind: of the operator. dims: its dimensions.
    """
    if kind != ORTHOGONALISATION:
        return (work(kind, dims),)
    return tuple(
        work("matmul", each) for matmuls in orthogonalising_matmuls(dims) for _ in range(STEPS) for each in matmuls
    )


def expand(text: str) -> list[str]:
    """The words of a run-length coded text. ValueError if its brackets do not match."""
    stack: list[list[str]] = [[]]
    for word in _WORD.findall(text):
        if word == "(":
            stack.append([])
        elif word.startswith(")x"):
            if len(stack) < 2:
                raise ValueError(f"{shown(text[:60])} closes a bracket that it does not open")
            repeated = stack.pop()
            stack[-1] += repeated * int(word[2:])
        else:
            stack[-1].append(word)
    if len(stack) > 1:
        raise ValueError(f"{shown(text[:60])} leaves a bracket open")
    return stack[0]


def recorded(row: Mapping[str, Any], dtypes: Mapping[str, str]) -> list[Event]:
    """A record's events.

    dtypes: by the record's name of a format, stagedb's. KeyError, ValueError or TypeError if it lacks or misuses a
    field. row: the record of a rank.
    """
    events: dict[str, Event] = {}
    for sent in row["collectives"]:
        dtype = dtypes.get(sent["dtype"], sent["dtype"])
        size = sent["bytes_in"] or sent["bytes_out"]
        events[f"c{sent['id']}"] = Sent(sent["phase"], sent["op"], sent["axis"], dtype, size)
    for item in row["matmuls_and_attention"]:
        kind = "attention" if "attention" in item["op"] else "matmul"
        events[item["id"]] = work(kind, item["dims"])
    return [events[word] for word in expand(row["timeline"])]


def traced(trace: TraceColumns, dims: Mapping[str, Sequence[OrderedWork]], order: Sequence[int]) -> list[Event]:
    """A rank's events. `dims` has the matmuls and attentions of each op, by its name.

    order: ids of the nodes as the rank issues them.
    """
    found = dict(_events(trace, dims))
    return [event for node in order for event in found.get(node, ())]


def _events(trace: TraceColumns, dims: Mapping[str, Sequence[OrderedWork]]) -> Iterator[tuple[int, Sequence[Event]]]:
    """The id of each node that has events, and these."""
    columns = trace.attributes
    for index, kind in enumerate(trace.types):
        name = trace.names[index].rsplit(" ", 1)[0]
        if kind == pb.COMP_NODE:
            found = dims.get(name)
            if found is not None:
                yield int(trace.ids[index]), found
        else:
            words = (columns[word][index] for word in ("phase", "kind", "axis", "dtype", "comm_size"))
            yield int(trace.ids[index]), (Sent(*words),)


def compare_order(theirs: Sequence[Event], ours: Sequence[Event]) -> Compared:
    """Compare two lists of events.

    Messages must have the same order. The work between two messages may have any order. theirs: of the record. ours: of
    stagedb.
    """
    sent = [[event for event in events if isinstance(event, Sent)] for events in (theirs, ours)]
    same = 0
    for one, other in zip_longest(*sent):
        if one != other:
            break
        same += 1
    gaps = [list(_gaps(events)) for events in (theirs, ours)]
    alike = sum(Counter(one) == Counter(other) for one, other in zip(*gaps, strict=False))
    most = max(map(len, sent))
    return Compared(
        (
            CountDifference("messages in order up to the first difference", most, same),
            CountDifference("gaps between messages with the same matmuls", max(map(len, gaps)), alike),
        ),
        exact=list(theirs) == list(ours),
    )


def _gaps(events: Sequence[Event]) -> Iterator[tuple[OrderedWork, ...]]:
    """The work before the first message, between each two, and after the last."""
    gap: list[OrderedWork] = []
    for event in events:
        if isinstance(event, OrderedWork):
            gap.append(event)
        else:
            yield tuple(gap)
            gap = []
    yield tuple(gap)
