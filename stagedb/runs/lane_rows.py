"""The ops and the tasks of a lane as rows, which are made as they are asked for: a large run has millions."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any

import numpy as np

from stagedb.runs.clocks import BARRIER
from stagedb.runs.kernel_names import short_name
from stagedb.runs.measured_path import next_of_stream
from stagedb.runs.measured_run import MeasuredLane, MeasuredRun, RecordedRun
from stagedb.runs.rank_spans import Numbering
from stagedb.runs.rank_trace import (
    BACKGROUND,
    CATEGORIES,
    HOST,
    NONE,
    PHASES,
    DeviceOps,
    Integers,
    Places,
    RankTrace,
    RecordedCollective,
    parts_of,
    rows_of,
)

LONGEST_NAME = 1_000
"""Characters of the name of a kernel or an annotation that are kept; templates of C++ have longer ones."""

ELEMENT_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("Byte", "Char", "Bool", "QInt8", "QUInt8", "UInt8", "Int8"), 1),
    **dict.fromkeys(("Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz", "Float8_e5m2fnuz", "Float8_e8m0fnu"), 1),
    **dict.fromkeys(("Short", "Half", "BFloat16", "UInt16"), 2),
    **dict.fromkeys(("Int", "Float", "UInt32", "ComplexHalf", "QInt32"), 4),
    **dict.fromkeys(("Long", "Double", "UInt64", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
"""Bytes of an element of each of PyTorch's types of scalars."""

_MOST_KNOWN = 1 << 14
"""Descriptions of ops that are kept to be used again."""

_LAYER = re.compile(r"\blayers?[ ._#\[]*(\d{1,6})\b", re.IGNORECASE)
_PIPELINE = re.compile(r"(?:^|[^a-z])(?:pp|pipeline\w*)(?:$|[^a-z])", re.IGNORECASE)

Node = tuple[str, dict[str, Any]]
"""A node: the id of the one that it belongs to, and its properties."""

Edge = tuple[str, str, dict[str, Any]]
"""A relationship: the ids of its source and its target, and its properties."""


def message_bytes(collective: RecordedCollective) -> int | None:
    """Bytes of the operand on one rank; None if they were not recorded. A barrier has no operand."""
    if collective.kind == BARRIER:
        return 0
    elements = collective.received if collective.kind == "recv" else collective.sent
    size = ELEMENT_BYTES.get(collective.dtype)
    return None if elements is None or size is None else elements * size


def axis_of(collective: RecordedCollective) -> str | None:
    """What people call the group: the framework's description, else its name; None if nothing was recorded."""
    if collective.description:
        return collective.description[:LONGEST_NAME]
    return f"group {collective.group}"[:LONGEST_NAME] if collective.group else None


def stage_of(trace: RankTrace, rank: int) -> int:
    """The place of a rank in its group of pipeline stages, which has its name from the framework; 0 without one."""
    for each in trace.collectives:
        if each.description and _is_pipeline(each.description) and rank in each.ranks:
            return each.ranks.index(rank)
    return 0


@lru_cache(maxsize=1 << 10)
def _is_pipeline(group: str) -> bool:
    return _PIPELINE.search(group) is not None


@dataclass(frozen=True)
class LaneOps:
    """What the rows of a lane have without times. run: with or without times. lane: one of its lanes."""

    run: RecordedRun
    lane: MeasuredLane

    @cached_property
    def id(self) -> str:
        return f"{self.run.id}/{self.lane.number}"

    @cached_property
    def place(self) -> dict[str, Any]:
        """Properties that all nodes of the lane have."""
        first, number = self.lane.ranks[0], self.lane.number
        stage = stage_of(self.run.ranks[first], first)
        return {"run": self.run.id, "lane": number, "class": number, "stage": stage, "rank": first}

    @property
    def columns(self) -> DeviceOps:
        """The ops of the lane's first rank."""
        return self.run.ranks[self.lane.ranks[0]].ops

    @cached_property
    def tasks_of_ops(self) -> tuple[list[tuple[int, int]], Places]:
        """Step and phase of each task, by their first ops, and for each op the number of its task."""
        step, number = np.unique(self.columns.step, return_inverse=True)
        keys, first, task = np.unique(number * len(PHASES) + self.columns.phase, return_index=True, return_inverse=True)
        order = np.argsort(first)
        numbers = np.empty(len(order), np.int32)
        numbers[order] = np.arange(len(order))
        pairs = [(int(step[key // len(PHASES)]), int(key % len(PHASES))) for key in keys[order].tolist()]
        return pairs, numbers[task]

    def descriptions(self, types: Sequence[str], kinds: Sequence[str]) -> Iterator[dict[str, Any]]:
        """For each op of the lane its properties that are no times. types, kinds: of the ops of its first rank."""
        ranks = self.lane.ranks
        return _descriptions(self.run.ranks[ranks[0]], types, kinds, {**self.place, "ranks": len(ranks)})

    @property
    def op_count(self) -> int:
        return len(self.columns)

    @property
    def task_count(self) -> int:
        return len(self.tasks_of_ops[0])

    def task_of(self, ops: Places) -> Places:
        """The numbers of the tasks of ops, which are places."""
        return self.tasks_of_ops[1][ops]

    @property
    def next_count(self) -> int:
        """How many ops follow another one on its stream."""
        return len(self.columns) - len(np.unique(self.columns.stream))

    def next_ops(self) -> Iterator[Edge]:
        """The edges from each op to the next one on its stream."""
        after = next_of_stream(self.columns.stream)
        ops = np.flatnonzero(after != NONE)
        for op, following in rows_of(ops, after[ops]):
            yield f"{self.id}/{op}", f"{self.id}/{following}", {}


@dataclass(frozen=True)
class LaneRows(LaneOps):
    """The rows of one lane of a run with times: its ops and its tasks."""

    run: MeasuredRun

    def _least_slack(self) -> Integers:
        found = [self.run.ops[rank].slack for rank in self.lane.ranks]
        return np.minimum.reduce(found) if len(found) > 1 else found[0]

    def _on_path(self, values: Integers) -> Integers:
        """For each op the sum of the values of its pieces of the critical path, on all ranks of the lane."""
        path = self.run.path
        found = np.zeros(self.op_count, np.int64)
        for part in parts_of(len(path)):
            here = np.isin(path.rank[part], self.lane.ranks)
            np.add.at(found, path.op[part][here], values[part][here])
        return found

    def ops(self) -> Iterator[Node]:
        """The ops, by start."""
        ranks, of, path = self.lane.ranks, self.run.ops, self.run.path
        first, count = ranks[0], len(ranks)
        on_path = [*map(self._on_path, (path.end - path.start, np.ones_like(path.reason), path.idle, path.launching))]

        def numbers(part: slice) -> Iterator[tuple[Any, ...]]:
            timed = [of[rank].timed for rank in ranks]
            lengths = [each.end[part] - each.start[part] for each in timed]
            exposed = np.add.reduce([of[rank].exposed[part] for rank in ranks]) // count
            slack = np.minimum.reduce([of[rank].slack[part] for rank in ranks])
            others = (*(each[part] for each in on_path), self.columns.bytes[part])
            starts, launches, waits = (
                [getattr(each, name)[part] for each in timed] for name in ("start", "launched", "synchronised")
            )
            mean = np.add.reduce(lengths) // count
            # A column a rank: lists of a part, one an op, would be looked at by the collector of garbage.
            return rows_of(*starts, *lengths, *launches, *waits, mean, exposed, slack, *others)

        rows = chain.from_iterable(map(numbers, parts_of(self.op_count)))
        descriptions = self.descriptions(of[first].types, of[first].kinds)
        for index, (description, row) in enumerate(zip(descriptions, rows, strict=True)):
            mean, exposed, slack, critical, times, idle, launching, size = row[4 * count :]
            values = {
                **description,
                "id": f"{self.id}/{index}",
                "index": index,
                "start": row[0],
                "duration": mean,
                "starts": [*row[:count]],
                "durations": [*row[count : 2 * count]],
                "launches": [*row[2 * count : 3 * count]],
                "synchronised": [*row[3 * count : 4 * count]],
                "total": mean,
                "exposed": exposed,
                "slack": slack,
                "critical": critical,
                "times_critical": times,
                "idle_before": idle,
                "launching": launching,
            }
            if size != NONE:
                values["bytes"] = size
            yield self.id, values

    def tasks(self) -> Iterator[Node]:
        """The tasks, by the starts of their first ops."""
        pairs, task = self.tasks_of_ops
        timed, path = self.run.ops[self.lane.ranks[0]].timed, self.run.path

        def over(values: Integers, each: Callable[..., None], begin: int) -> list[int]:
            found = np.full(len(pairs), begin, np.int64)
            each(found, task, values)
            return found.tolist()

        most = np.iinfo(np.int64).max
        columns = (
            over(timed.start, np.minimum.at, most),
            over(timed.end, np.maximum.at, -most),
            over(self._least_slack(), np.minimum.at, most),
            over(self._on_path(path.end - path.start), np.add.at, 0),
        )
        for number, ((step, phase), start, finish, slack, critical) in enumerate(zip(pairs, *columns, strict=True)):
            values = {
                "id": f"{self.id}/t{number}",
                **self.place,
                "index": number,
                "kind": PHASES[phase],
                "step_number": None if step == NONE else step,
                "chunk": 0,
                "start": start,
                "finish": finish,
                "slack": slack,
                "critical": critical,
            }
            yield self.id, known(values)


def known(values: dict[str, Any]) -> dict[str, Any]:
    """The properties that are not None. values: by name of the property."""
    return {name: value for name, value in values.items() if value is not None}


def _descriptions(
    trace: RankTrace, types: Sequence[str], kinds: Sequence[str], fixed: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """For each op of a rank its properties that are no times, those of its lane, and those that all ops have."""
    ops = trace.ops
    blocks: Numbering[str] = Numbering()
    block = np.array([blocks[each.name[:LONGEST_NAME]] for each in trace.annotations] or [0], np.int32)
    block = np.where(ops.annotation == NONE, np.int32(NONE), block[ops.annotation])
    communicates = (ops.collective != NONE).astype(np.int8)
    described = (ops.name, ops.launcher, ops.step, ops.phase, ops.stream, ops.category, ops.shapes, ops.module)
    alike = _combined(*described, block, communicates)
    # The last text is that of `NONE`.
    texts = [*blocks, ""]
    made: dict[int, dict[str, Any]] = {}
    for index, (key, collective) in enumerate(rows_of(alike, ops.collective)):
        found = made.get(key)
        if found is None:
            if len(made) == _MOST_KNOWN:
                made.clear()
            found = made[key] = {**fixed, **_described(trace, index, texts[block[index]])}
            found["type"], found["kind"] = types[index], kinds[index]
        if collective != NONE:
            own = _communication(trace.collectives[collective])
            found = {**found, **own, "type": types[index], "kind": kinds[index]}
            if "message" not in own:
                # Only what does not communicate has a message of no bytes.
                del found["message"]
        yield found


def _combined(*columns: Places) -> Integers:
    """A number for each op, which is the same where all columns are."""
    most = np.iinfo(np.int64).max
    found, size = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        count = int(column.max(initial=NONE)) + 2
        if size * count > most:
            found, column = (np.unique(each, return_inverse=True)[1] for each in (found, column))
            size, count = len(found), len(found) + 1
        found *= count
        found += column
        found += 1
        size *= count
    return found


def _described(trace: RankTrace, index: int, block: str) -> dict[str, Any]:
    """Properties of an op that computes, or that all ops have. block: the name of the annotation around it."""
    ops, layer = trace.ops, _LAYER.search(block)
    launcher, step, shapes = int(ops.launcher[index]), int(ops.step[index]), int(ops.shapes[index])
    module = int(ops.module[index])
    values = {
        "name": short_name(trace.names[ops.name[index]]),
        "symbol": trace.names[ops.name[index]][:LONGEST_NAME],
        "processor": category if (category := CATEGORIES[ops.category[index]]) in (HOST, BACKGROUND) else "device",
        "phase": PHASES[ops.phase[index]],
        "block": block,
        "layer": None if layer is None else int(layer[1]),
        "chunk": 0,
        "stream": trace.streams[ops.stream[index]],
        "launcher": None if launcher == NONE else trace.names[launcher][:LONGEST_NAME],
        "shapes": (trace.shapes[shapes] or None) if shapes != NONE else None,
        "module": None if module == NONE else trace.modules[module],
        "step_number": None if step == NONE else step,
        "message": 0,
        "count": 1,
        "rule": "measured",
    }
    return known(values)


def _communication(collective: RecordedCollective) -> dict[str, Any]:
    """Properties of what it communicates, those that were recorded."""
    sizes: Counter[str] = Counter()
    for path, elements in collective.gradients:
        sizes[path] += elements
    return known(
        {
            "axis": axis_of(collective),
            "dtype": collective.dtype or None,
            "message": message_bytes(collective),
            "group_size": collective.size,
            "sequence": collective.sequence,
            "modules": [*sizes] or None,
            "module_elements": [*sizes.values()] or None,
        }
    )
