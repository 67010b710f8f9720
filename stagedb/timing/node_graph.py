"""The nodes of all lanes and their dependencies: the network that a timeline is computed from.

An event begins and ends at the same time for all that take part in it. It is a node of one lane, or the call of a
collective for its members in several lanes. A message is two events: the send takes time, and the receive ends when the
message has arrived.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from stagedb.errors import StagedbError, TooLargeError, UsageError
from stagedb.files import shown
from stagedb.lowering.columns import (
    COLLECTIVE,
    COMPUTE,
    LIMIT,
    ONCE_A_STEP,
    RECV,
    SEND,
    TASK_KINDS,
    ClassColumns,
    Ints,
    Workload,
)
from stagedb.lowering.issue_order import CTRL_DEPS, sequence
from stagedb.lowering.issue_order import Sequence as Nodes
from stagedb.mentions import Word, call
from stagedb.plans.graph_options import RINGS
from stagedb.systems import Dimension
from stagedb.timing.lanes import Lane, find_lanes

STREAMS = ("one", "axis")
"""How collectives and sends are put on streams: all of a rank on one stream, or each mesh axis on its own."""

MOST_NODES = 16_000_000
"""Nodes of a step, each of some 600 bytes while it is timed."""

COMPUTE_STREAM, NO_STREAM = 0, -1
"""Streams of a lane: compute has the first, receives have none, communication has the others."""


class Reason(IntEnum):
    """Why a node began when it did, and no earlier."""

    START = 0
    """It begins the step."""
    DEPENDENCY = 1
    """It reads the result of another node of its lane that ended then, or must come after it."""
    STREAM = 2
    """Its stream was busy with the node before it until then."""
    MEMBER = 3
    """A member of its group, in another lane, came no earlier."""
    MESSAGE = 4
    """The message that it receives was under way until then."""


@dataclass(frozen=True)
class NodeGraph:
    """Nodes lane by lane in issue order, as columns, and the edges between them.

    Columns with one value a node: lane, task (index in the class's tasks), op (row of the class's ops), type (index of
    `columns.TYPES`), stream, event. The events of a lane's nodes of one stream ascend in issue order. place: the place
    of each node of a communication stream on that stream. source, target, reason: an edge means that the event of
    `target` begins after `source` has ended. firsts: each lane's first node, and the number of nodes. streams: names of
    a lane's streams.
    """

    workload: Workload
    lanes: tuple[Lane, ...]
    columns: tuple[ClassColumns, ...]
    streams: tuple[str, ...]
    firsts: Ints
    lane: Ints
    task: Ints
    op: Ints
    type: Ints
    stream: Ints
    place: Ints
    event: Ints
    events: int
    source: Ints
    target: Ints
    reason: Ints

    def __len__(self) -> int:
        return len(self.lane)

    def node(self, lane: int, task: int, op: int) -> int:
        """The node of an op in a task of a lane. Raises UsageError if that task does not run the op."""
        begin, end = int(self.firsts[lane]), int(self.firsts[lane + 1])
        places = np.flatnonzero((self.task[begin:end] == task) & (self.op[begin:end] == op))
        if not len(places):
            raise UsageError(f"task {task} of lane {lane} does not run op {op}")
        return begin + int(places[0])

    def lengths(self, durations: Sequence[Ints], delays: Mapping[int, int] | None = None) -> Ints:
        """How long each event takes [ns].

        durations: for each lane, ns of each op of its class; those of receives are ignored. delays: for some nodes, the
        ns that they take in addition. A collective takes as long as its slowest member and has the delay of the member
        that is delayed most. Raises ValueError if a lane's durations are not one integer an op, 0 or more.
        """
        took = np.zeros(len(self), np.int64)
        for lane, columns, given in zip(self.lanes, self.columns, durations, strict=True):
            if given.shape != (len(columns.ops),) or not np.issubdtype(given.dtype, np.integer):
                raise ValueError(
                    f"class {columns.number} has {len(columns.ops)} ops: their durations are as many int64"
                )
            if (given < 0).any():
                raise ValueError(f"class {columns.number} has ops that take less than nothing")
            at = slice(int(self.firsts[lane.number]), int(self.firsts[lane.number + 1]))
            took[at] = given[self.op[at]]
        took[self.type == RECV] = 0
        found, more = np.zeros((2, self.events), np.int64)
        np.maximum.at(found, self.event, took)
        for node, delay in (delays or {}).items():
            more[self.event[node]] = max(more[self.event[node]], delay)
        length: Ints = found + more
        return length

    def describe(self, node: int) -> str:
        """A description of a node for messages."""
        lane, columns = self.lanes[self.lane[node]], self.columns[self.lane[node]]
        kind, microbatch = (int(column[self.task[node]]) for column in (columns.tasks.kind, columns.tasks.microbatch))
        task = f"the {TASK_KINDS[kind]}" if ONCE_A_STEP[kind] else f"{TASK_KINDS[kind]} of micro-batch {microbatch}"
        return f"{columns.ops.name[self.op[node]]} in {task} on stage {lane.stage} (class {columns.number})"


def node_graph_of(workload: Workload, streams: str = "one", dimensions: Sequence[Dimension] = ()) -> NodeGraph:
    """Lay out all classes of an instance and connect them.

    streams: one of `STREAMS`. dimensions: dimensions of the ranks' network, with their sizes. Without any, all ranks
    have equal positions and their messages take equally long.

    Raises StagedbError if collectives or messages of two classes do not match.
    """
    if streams not in STREAMS:
        raise UsageError(f"streams are {' or '.join(STREAMS)}, not {shown(streams)}")
    lanes = find_lanes(workload, dimensions)
    by_number = {columns_of.number: columns_of for columns_of in workload.classes}
    columns = tuple(by_number[lane.rank_class] for lane in lanes)
    axes = (
        sorted({axis for columns_of in columns for axis in columns_of.ops.axis if axis})
        if streams == "axis"
        else ["all"]
    )
    laid_out = {columns_of.number: sequence(columns_of) for columns_of in workload.classes}
    # Before anything is made for each of the nodes.
    _check_size(workload, sum(laid_out[lane.rank_class].nodes for lane in lanes))
    parts = {
        columns_of.number: _Part.of(columns_of, laid_out[columns_of.number], axes) for columns_of in workload.classes
    }
    of_lane = [parts[lane.rank_class] for lane in lanes]
    firsts = np.concatenate([[0], np.cumsum([len(part.task) for part in of_lane])]).astype(np.int64)

    def joined(name: str) -> Ints:
        return np.concatenate([getattr(part, name) for part in of_lane])

    lane = np.repeat(np.arange(len(lanes)), np.diff(firsts))
    shift = np.repeat(firsts[:-1], [len(part.source) for part in of_lane])
    event = _events(lanes, of_lane, columns, firsts)
    sends, receives = _messages(lanes, of_lane, columns, firsts)
    return NodeGraph(
        workload=workload,
        lanes=lanes,
        columns=columns,
        streams=("compute", *axes),
        firsts=firsts,
        lane=lane,
        task=joined("task"),
        op=joined("op"),
        type=joined("type"),
        stream=joined("stream"),
        place=joined("place"),
        event=event,
        events=int(event.max(initial=-1)) + 1,
        source=np.concatenate([joined("source") + shift, sends]),
        target=np.concatenate([joined("target") + shift, receives]),
        reason=np.concatenate([joined("reason"), np.full(len(sends), Reason.MESSAGE)]).astype(np.int64),
    )


def _check_size(workload: Workload, nodes: int) -> None:
    if nodes <= MOST_NODES:
        return
    words = workload.plan
    ring = f", a smaller {Word('cp')}" if str(words.get("cp_kind")) in RINGS else ""
    raise TooLargeError(
        f"a step of {nodes:,} operators on all ranks that differ does not fit into memory to be timed (at most "
        f"{MOST_NODES:,}): take fewer micro-batches ({Word('micro_batch_size')}), a smaller "
        f"{Word('global_batch_size')}{ring}, or fewer stages ({Word('pp')})"
    )


@dataclass(frozen=True)
class _Part:
    """The nodes and edges of a class, numbered from 0."""

    task: Ints
    op: Ints
    type: Ints
    stream: Ints
    place: Ints
    source: Ints
    target: Ints
    reason: Ints

    @classmethod
    def of(cls, columns: ClassColumns, nodes: Nodes, axes: Sequence[str]) -> "_Part":
        counts = np.array([len(layout.ops) for layout in nodes.layouts], np.int64)[nodes.layout]
        task = np.repeat(nodes.task, counts)
        op = np.concatenate([nodes.layouts[layout].ops for layout in nodes.layout.tolist()])
        kind = columns.ops.type[op]
        number = {axis: index for index, axis in enumerate(axes, 1)}
        stream_of = np.array([number.get(axis, 1) for axis in columns.ops.axis], np.int64)
        stream = np.select([kind == COMPUTE, kind == RECV], [COMPUTE_STREAM, NO_STREAM], stream_of[op])
        source, target, control = _edges(nodes)
        # The chain over all communication serves readers of traces. Here each stream gets its own part of it.
        chain = np.zeros(len(op), np.int64)
        communicates = np.flatnonzero(stream > COMPUTE_STREAM)
        chain[communicates] = np.arange(1, len(communicates) + 1)
        linked = control & (chain[source] > 0) & (chain[target] == chain[source] + 1)
        limits = columns.edges.kind == LIMIT
        wanted = columns.edges.source[limits] * len(columns.ops) + columns.edges.target[limits]
        kept = ~linked
        kept[linked] = np.isin(op[source[linked]] * len(columns.ops) + op[target[linked]], wanted)
        order = communicates[np.argsort(stream[communicates], kind="stable")]
        follows = np.flatnonzero(stream[order[1:]] == stream[order[:-1]])
        place = np.zeros(len(op), np.int64)
        place[order] = np.arange(len(order))
        reasons = np.repeat([Reason.DEPENDENCY, Reason.STREAM], [int(kept.sum()), len(follows)])
        return cls(
            task,
            op,
            kind,
            stream,
            place,
            np.concatenate([source[kept], order[follows]]),
            np.concatenate([target[kept], order[follows + 1]]),
            reasons.astype(np.int64),
        )


def _edges(nodes: Nodes) -> tuple[Ints, Ints, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """Every dependency of every node (from 0): source, target, and whether it is a control dependency."""
    sources, targets, controls = [], [], []
    for number, layout in enumerate(nodes.layouts):
        tasks = np.flatnonzero(nodes.layout == number)
        before = nodes.sources[np.ix_(tasks, layout.ref)]
        sources.append((nodes.base[before] - 1 + layout.offset).reshape(-1))
        targets.append((nodes.base[tasks][:, None] - 1 + layout.row).reshape(-1))
        controls.append(np.tile(layout.field == CTRL_DEPS, len(tasks)))
    return np.concatenate(sources), np.concatenate(targets), np.concatenate(controls)


def _events(lanes: Sequence[Lane], parts: Sequence[_Part], columns: Sequence[ClassColumns], firsts: Ints) -> Ints:
    """The event of each node: the k-th call in a group is one event for its members in all lanes."""
    first = np.arange(int(firsts[-1]), dtype=np.int64)
    joint = False
    axes = sorted({axis for lane in lanes for axis in lane.members} | {axis for c in columns for axis in c.ops.axis})
    for axis in axes:
        calls = {}
        for lane, part, each in zip(lanes, parts, columns, strict=True):
            on_axis = (each.ops.type == COLLECTIVE) & np.array([name == axis for name in each.ops.axis], bool)
            calls[lane.number] = np.flatnonzero(on_axis[part.op])
            if len(calls[lane.number]) and axis not in lane.members:
                raise StagedbError(f"class {each.number} has collectives on axis {axis}, along which it has no group")
        for lane in lanes:
            group = lane.members.get(axis, (lane.number,))
            if len(group) < 2 or group[0] == lane.number:
                continue
            mine, theirs = calls[lane.number], calls[group[0]]
            if _described(columns[lane.number], parts[lane.number], mine) != _described(
                columns[group[0]], parts[group[0]], theirs
            ):
                raise StagedbError(
                    f"classes {lane.rank_class} and {lanes[group[0]].rank_class} share groups of axis {axis} and "
                    f"issue different collectives there: the instance is broken; remove it with {call('rm')} and make "
                    "it again"
                )
            first[firsts[lane.number] + mine] = firsts[group[0]] + theirs
            joint = True
    if not joint:
        return first
    events: Ints = np.unique(first, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return events


def _described(columns: ClassColumns, part: _Part, calls: Ints) -> list[tuple[str, int]]:
    return [(columns.ops.kind[op], int(columns.ops.size[op])) for op in part.op[calls].tolist()]


def _messages(
    lanes: Sequence[Lane], parts: Sequence[_Part], columns: Sequence[ClassColumns], firsts: Ints
) -> tuple[Ints, Ints]:
    """Nodes that send, and for each the node that receives: the k-th of a tag between two lanes matches the k-th."""
    sent, received = (_ends(lanes, parts, columns, firsts, type_) for type_ in (SEND, RECV))
    if sent.shape != received.shape or (sent[:, 1:] != received[:, 1:]).any():
        both = [{tuple(row) for row in each[:, 1:3].tolist()} for each in (sent, received)]
        wrong = sorted(both[0] ^ both[1]) or [(int(sent[0, 1]), int(sent[0, 2]))]
        source, target = (lanes[number] for number in wrong[0])
        raise StagedbError(
            f"what stage {source.stage} (class {source.rank_class}) sends is not what stage {target.stage} (class "
            f"{target.rank_class}) receives: the instance is broken; remove it with {call('rm')} and make it again"
        )
    return sent[:, 0], received[:, 0]


def _ends(
    lanes: Sequence[Lane], parts: Sequence[_Part], columns: Sequence[ClassColumns], firsts: Ints, type_: int
) -> Ints:
    """One end of every message, a row each: node, lane that sends, lane that receives, hop, tag and size; sorted.

    The hop leads from the sender to the next stage (1) or the next rank of a ring (2); negative: to the one before.
    """
    rows = []
    for lane, part, each in zip(lanes, parts, columns, strict=True):
        at = np.flatnonzero(part.type == type_)
        op = part.op[at]
        hop = each.ops.towards[op] if type_ == SEND else -each.ops.towards[op]
        ring, onwards = each.ops.rings[op], (hop > 0) == (type_ == SEND)
        other = np.where(
            ring,
            np.where(onwards, lane.ring_next, lane.ring_previous),
            np.where(onwards, lane.next, lane.previous),
        )
        mine = np.full(len(at), lane.number)
        ends = (mine, other) if type_ == SEND else (other, mine)
        tag = each.tasks.tags[part.task[at]] + each.ops.tags(each.tasks)[op]
        rows.append(np.stack([firsts[lane.number] + at, *ends, hop * (1 + ring), tag, each.ops.size[op]], axis=1))
    found = np.concatenate(rows).astype(np.int64)
    return found[np.lexsort((found[:, 0], found[:, 4], found[:, 3], found[:, 2], found[:, 1]))]
