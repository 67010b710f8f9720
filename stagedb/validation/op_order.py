"""The program order of a rank: its messages, and the matmuls and attentions between them.

A record has it in `timeline`, run-length coded: `c3` is its collective with id 3, `m5` the item `m5` of
`matmuls_and_attention`, and `(a b)x32` means 32 times a, b. In a rank's trace the ids of nodes give the order.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

from stagedb.inputs import shown
from stagedb.schedules import PostedGathers, PostedReceive, PostedReductions, Posting, Task
from stagedb.traces import chakra_pb2 as pb
from stagedb.traces.trace_reading import TraceColumns
from stagedb.validation.counts import CountDifference

_WORD = re.compile(r"\(|\)x[0-9]+|[^\s()]+")


class Sent(NamedTuple):
    """A message, in the order of issue."""

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


Apart = type[PostedGathers] | type[PostedReductions]
"""What a runtime posts apart from the tasks of a chunk."""


@dataclass(frozen=True)
class Compared:
    """Whether messages and the work between two of them are the same; `exact`: the work is in the same order, too."""

    differences: tuple[CountDifference, ...]
    exact: bool


def work(kind: str, dims: Sequence[int]) -> OrderedWork:
    """A matmul is the same if its two sides change places."""
    if kind == "matmul":
        *batch, m, n, k = dims
        dims = (*batch, *sorted((m, n)), k)
    return OrderedWork(kind, tuple(dims))


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
    """A record's events. KeyError, ValueError or TypeError if it lacks or misuses a field."""
    events: dict[str, Event] = {}
    for sent in row["collectives"]:
        dtype = dtypes.get(sent["dtype"], sent["dtype"])
        size = sent["bytes_in"] or sent["bytes_out"]
        events[f"c{sent['id']}"] = Sent(sent["phase"], sent["op"], sent["axis"], dtype, size)
    for item in row["matmuls_and_attention"]:
        kind = "attention" if "attention" in item["op"] else "matmul"
        events[item["id"]] = work(kind, item["dims"])
    return [events[word] for word in expand(row["timeline"])]


@dataclass(frozen=True)
class Posted:
    """What a rank's runtime posts, and when.

    firsts: the id of each task's first node. order: the rank's tasks with its messages where they are posted. apart:
    which buckets are posted on their own, by chunk; else they are with the tasks that need them. places: the positions
    of a class's ops, by chunk and name.
    """

    firsts: Sequence[int]
    order: Sequence[Posting]
    apart: Callable[[str], Apart | None]
    places: Mapping[tuple[int, str], int]

    def module(self, chunk: int, name: str) -> tuple[int, bool]:
        """The place of a unit among a chunk's modules, by the op that gathers it: experts are behind their layer."""
        return self.places[chunk, name], ".experts" in name


def traced(trace: TraceColumns, dims: Mapping[str, OrderedWork], posted: Posted | None = None) -> list[Event]:
    """A rank's events. `dims` has the matmuls and attentions by the op's name.

    posted: None if each message is with the task that reads or makes it.
    """
    if posted is None:
        return [event for _, _, event in _events(trace, dims)]
    tasks = [each for each in posted.order if isinstance(each, Task)]
    found: dict[Posting, list[Event]] = {each: [] for each in posted.order}
    gathers: dict[Posting, list[tuple[tuple[int, bool], Event]]] = {}
    for node, name, event in _events(trace, dims):
        task = tasks[bisect_right(posted.firsts, node) - 1]
        apart = posted.apart(name)
        if isinstance(event, Sent) and event.kind == "recv" and event.axis == "pp":
            found[PostedReceive(task)].append(event)
        elif apart is not None and apart(task.chunk) in found and _in_time(apart, task, tasks):
            if apart is PostedGathers:
                gathers.setdefault(apart(task.chunk), []).append((posted.module(task.chunk, name), event))
            else:
                found[apart(task.chunk)].append(event)
        else:
            found[task].append(event)
    for posting, each in gathers.items():
        found[posting] = [event for _, event in sorted(each, key=lambda one: one[0])]
    return [event for each in posted.order for event in found[each]]


def _in_time(apart: Apart, task: Task, tasks: Sequence[Task]) -> bool:
    """Whether it is posted apart: reductions always, gathers those of a chunk's first task."""
    first = next(each for each in tasks if each.chunk == task.chunk)
    return apart is not PostedGathers or task == first


def _events(trace: TraceColumns, dims: Mapping[str, OrderedWork]) -> Iterator[tuple[int, str, Event]]:
    """The id and the op of each node that is an event, and the event."""
    columns = trace.attributes
    for index, kind in enumerate(trace.types):
        name = trace.names[index].rsplit(" ", 1)[0]
        if kind == pb.COMP_NODE:
            found = dims.get(name)
            if found is not None:
                yield int(trace.ids[index]), name, found
        else:
            words = (columns[word][index] for word in ("phase", "kind", "axis", "dtype", "comm_size"))
            yield int(trace.ids[index]), name, Sent(*words)


def compare_order(theirs: Sequence[Event], ours: Sequence[Event]) -> Compared:
    """Compare two lists of events.

    Messages must have the same order. The work between two messages may have any order.
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
