"""A step as a trace for Perfetto's viewer (https://ui.perfetto.dev): a group of tracks a lane, a track a stream.

Whole columns of messages are encoded at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.lowering.columns import ONCE_A_STEP, RECV, SEND, TYPES
from stagedb.mentions import OPTIONS, Word
from stagedb.reports.step_view import StepView
from stagedb.timing import Lane
from stagedb.timing.node_graph import NO_STREAM, Reason
from stagedb.traces.protobuf_columns import ByteRows, Ints, bytes_fields, constant, join, number_fields, tag, texts
from stagedb.workflows import TASK_KINDS

# Perfetto's protobuf: tracks, and events on them in columns, since a trace has many small messages.
#
# Field numbers are those of Perfetto's `trace_packet.proto`, `track_event.proto` and `track_descriptor.proto`.

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
_EXPLICIT, _BYTES = 3, 3
_FIXED64 = 1


class InternedNames:
    """Texts that are written once. Other messages use their numbers."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __getitem__(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers) + 1)

    def of(self, values: Sequence[str]) -> Ints:
        """The number of each text, which is new for a text that was not interned yet."""
        return np.array([self[value] for value in values], np.int64)


@dataclass(frozen=True)
class TrackEvents:
    """Events in the order of their tracks, as columns.

    time: ns. name: the number of an interned text, 0 for an end. more: further fields of each event.
    """

    kind: Ints
    track: Ints
    time: Ints
    name: Ints
    more: ByteRows


@dataclass
class PerfettoFile:
    """A trace while it is made. names, keys, values: texts that are written once. slices: how many there are."""

    names: InternedNames = field(default_factory=InternedNames)
    keys: InternedNames = field(default_factory=InternedNames)
    values: InternedNames = field(default_factory=InternedNames)
    tracks: list[bytes] = field(default_factory=list)
    events: list[TrackEvents] = field(default_factory=list)
    slices: int = 0

    def track(self, parent: int, name: str, rank: int, *, ordered: bool = False, counts_bytes: bool = False) -> int:
        """Add a track, which is a row of the view. Returns its id.

        parent: the id of the track that it is under; 0: none. name: as the view shows it. rank: its place among its
        siblings. ordered: whether its children are in the order of their `rank`. counts_bytes: it is a counter of
        bytes; else it has slices.
        """
        number = len(self.tracks) + 1
        about = f"Written by stagedb: {name}" if parent == 0 else ""
        self.tracks.append(
            number_field(1, number)
            + text_field(2, name)
            + (number_field(5, parent) if parent else b"")
            + (text_field(8, number_field(3, _BYTES)) if counts_bytes else b"")
            + (number_field(11, _EXPLICIT) if ordered else b"")
            + number_field(12, rank)
            + (text_field(14, about) if about else b"")
        )
        return number

    def arg(self, key: str, values: Ints) -> ByteRows:
        """An argument that is a whole number, one for each row. key: one of `keys`. values: a column."""
        name = constant(number_field(1, self.keys[key]), len(values))
        return bytes_fields(4, join(name, number_fields(3, values))[0])

    def text_arg(self, key: str, values: Sequence[str]) -> ByteRows:
        """An argument that is a text, one for each row. An empty text has no argument.

        key: one of `keys`. values: a column.
        """
        name = constant(number_field(1, self.keys[key]), len(values))
        found = bytes_fields(4, join(name, number_fields(17, self.values.of(values)))[0])
        return found.where(np.array([bool(value) for value in values], bool))

    def content(self) -> bytes:
        """The whole trace."""
        kind, track, time, name = (
            np.concatenate([getattr(each, field) for each in self.events])
            for field in ("kind", "track", "time", "name")
        )
        more = stack(*(each.more for each in self.events))
        event = join(number_fields(9, kind), number_fields(11, track), number_fields(10, name).where(name > 0), more)[0]
        count = len(kind)
        packets = join(
            number_fields(8, time), constant(number_field(10, 1) + number_field(13, 2), count), bytes_fields(11, event)
        )[0]
        first = b"".join(text_field(1, number_field(10, 1) + text_field(60, each)) for each in self.tracks)
        interned = [
            (2, self.names),
            (3, self.keys),
            (29, self.values),
        ]
        words = b"".join(
            text_field(field, number_field(1, number) + text_field(2, text))
            for field, names in interned
            for text, number in names.numbers.items()
        )
        first += text_field(1, number_field(10, 1) + number_field(13, 1) + text_field(12, words))
        return first + bytes_fields(1, packets).data.tobytes()


def stack(*parts: ByteRows) -> ByteRows:
    """The rows of all parts, one part after the other."""
    return ByteRows(np.concatenate([each.data for each in parts]), np.concatenate([each.lengths for each in parts]))


def flow_field(field: int, numbers: Ints) -> ByteRows:
    """The protobuf field of a flow, the arrow between two slices. It has eight bytes; number 0 has no field.

    field: its number. numbers: of the flows.
    """
    value = numbers.astype("<i8").view(np.uint8).reshape(len(numbers), 8)
    head = np.tile(np.frombuffer(tag(field, _FIXED64), np.uint8), (len(numbers), 1))
    rows = np.concatenate([head, value], axis=1)
    return ByteRows(rows.reshape(-1), np.full(len(numbers), rows.shape[1], np.int64)).where(numbers > 0)


def number_field(field: int, value: int) -> bytes:
    """A protobuf field whose value is a whole number."""
    return number_fields(field, np.array([value], np.int64)).data.tobytes()


def text_field(field: int, value: str | bytes) -> bytes:
    """A field that is a text, or a message. field: its number. value: the text, or the message's bytes."""
    data = value.encode() if isinstance(value, str) else value
    return bytes_fields(field, ByteRows(np.frombuffer(data, np.uint8), np.array([len(data)], np.int64))).data.tobytes()


GRANULARITIES = ("op", "task")
MOST = 500_000
"""Slices of operators in a trace without a chosen granularity. A browser loads them in some seconds."""


@dataclass(frozen=True)
class Traced:
    """A trace: `content` is the file's. slices, flows: their numbers. left_out: what it lacks, in words."""

    content: bytes
    slices: int
    flows: int
    left_out: tuple[str, ...]


def trace(job: StepView, granularity: str | None = None, stages: Sequence[int] | None = None) -> Traced:
    """A step as Perfetto's protobuf, with times in ns from the step's begin.

    granularity: `op` for slices of operators and collectives nested in those of their tasks; `task` for slices of the
    tasks and of messages; None: `op` if that makes no more than `MOST`. stages: only these. Raises UsageError for
    unknown words and stages.
    """
    if granularity not in (None, *GRANULARITIES):
        raise UsageError(
            f"unknown granularity {shown(granularity)}: {Word('granularity')} is {' or '.join(GRANULARITIES)}"
        )
    lanes = job.of_stages(stages)
    net = job.times.network
    nodes = sum(int(net.firsts[lane.number + 1] - net.firsts[lane.number]) for lane in lanes)
    fine = granularity == "op" or (granularity is None and nodes <= MOST)
    left_out = []
    if granularity is None and not fine:
        left_out.append(
            f"operators ({nodes:,} of them; tasks are shown: {OPTIONS.word(Word('granularity', 'op'))} shows all, "
            f"{OPTIONS.word(Word('only'))} fewer stages)"
        )
    if len(lanes) < len(job.lanes):
        left_out.append(f"{len(job.lanes) - len(lanes)} of {len(job.lanes)} lanes ({OPTIONS.word(Word('only'))})")
    writer = _Writer(job, fine)
    for place, lane in enumerate(lanes):
        writer.lane(place, lane)
    writer.path()
    return writer.done(lanes, tuple(left_out))


class _Writer:
    def __init__(self, job: StepView, fine: bool) -> None:
        self.job = job
        self.fine = fine
        self.net, self.times = job.times.network, job.times.timeline
        self.critical = np.zeros(len(self.net), bool)
        self.critical[job.times.path.node] = True
        self.file = PerfettoFile()
        messages = self.net.reason == Reason.MESSAGE
        # The node that receives a message identifies it.
        self.flow_of = np.zeros(len(self.net), np.int64)
        self.sent_from: dict[int, int] = {}
        for source, target in zip(self.net.source[messages].tolist(), self.net.target[messages].tolist(), strict=True):
            self.flow_of[[source, target]] = target + 1
            self.sent_from[target] = source
        self.root = self.file.track(0, f"{job.workload.name} on {job.system.name}", 0, ordered=True)
        self.path_track = self.file.track(self.root, "critical path", 0)

    def lane(self, place: int, lane: Lane) -> None:
        """Write what a lane runs: a track for each stream, one for receives, one for memory."""
        net = self.net
        ranks = "1 rank" if lane.ranks == 1 else f"{lane.ranks:,} ranks"
        group = self.file.track(
            self.root, f"{self.job.label(lane)} (class {lane.rank_class}, {ranks})", place + 1, ordered=True
        )
        at = np.arange(int(net.firsts[lane.number]), int(net.firsts[lane.number + 1]))
        args = self._op_args(lane)
        for stream, name in enumerate(net.streams):
            nodes = at[net.stream[at] == stream]
            if len(nodes):
                called = name if stream == 0 else "communication" if name == "all" else f"communication: {name}"
                self._stream(lane, self.file.track(group, called, stream), nodes, args)
        received = at[(net.type[at] == RECV) & (net.stream[at] == NO_STREAM)]
        if len(received):
            self._received(lane, self.file.track(group, "received", len(net.streams)), received, args)
        self._memory(lane, group)

    def _stream(self, lane: Lane, track: int, nodes: Ints, args: ByteRows) -> None:
        """Slices of a stream's nodes, which run one after the other, inside slices of their tasks."""
        net, ops = self.net, self.net.columns[lane.number].ops
        event = net.event[nodes]
        # In the order in which they run: a slice without duration comes before one that begins at its time.
        order = np.lexsort((nodes, self.times.finish[event], self.times.start[event]))
        nodes, event = nodes[order], event[order]
        start, finish = self.times.start[event], self.times.finish[event]
        task = net.task[nodes]
        fresh = np.ones(len(nodes), bool)
        fresh[1:] = task[1:] != task[:-1]
        firsts = np.flatnonzero(fresh)
        lasts = np.append(firsts[1:], len(nodes)) - 1
        names, args_of_tasks = self._tasks(lane)
        shown = np.arange(len(nodes)) if self.fine else np.flatnonzero(net.type[nodes] == SEND)
        op = net.op[nodes[shown]]
        flows = np.where(net.type[nodes[shown]] == SEND, self.flow_of[nodes[shown]], 0)
        begun = join(args.take(op), self._node_args(nodes[shown]), flow_field(47, flows))[0]
        # Keys that sort the begins and ends of tasks and of the slices in them, by issue order.
        keys = np.concatenate([4 * firsts, 4 * shown + 1, 4 * shown + 2, 4 * lasts + 3])
        place = np.argsort(keys, kind="stable")
        tasks, parts = len(firsts), len(shown)
        self.file.slices += tasks + parts
        self.file.events.append(
            TrackEvents(
                np.repeat([BEGIN, BEGIN, END, END], [tasks, parts, parts, tasks])[place],
                np.full(len(keys), track),
                np.concatenate([start[firsts], start[shown], finish[shown], finish[lasts]])[place],
                np.concatenate(
                    [names[task[firsts]], self.file.names.of(ops.name)[op], np.zeros(parts + tasks, np.int64)]
                )[place],
                stack(args_of_tasks.take(task[firsts]), begun, constant(b"", parts + tasks)).take(place),
            )
        )

    def _received(self, lane: Lane, track: int, nodes: Ints, args: ByteRows) -> None:
        net = self.net
        time = self.times.finish[net.event[nodes]]
        order = np.argsort(time, kind="stable")
        nodes, time = nodes[order], time[order]
        waited = self.file.arg("waited_ns", time - self.job.times.arrival[nodes])
        more = join(args.take(net.op[nodes]), waited, flow_field(48, self.flow_of[nodes]))[0]
        names = self.file.names.of(net.columns[lane.number].ops.name)[net.op[nodes]]
        count = len(nodes)
        self.file.events.append(TrackEvents(np.full(count, INSTANT), np.full(count, track), time, names, more))

    def _memory(self, lane: Lane, group: int) -> None:
        """The memory of the lane's ranks: the peak within each task from its begin, and the memory at the end."""
        found = next((each for each in self.job.memory if each.rank_class.number == lane.rank_class), None)
        if found is None:
            return
        track = self.file.track(
            group, "memory (the most within each task)", len(self.net.streams) + 1, counts_bytes=True
        )
        tasks = self.job.times.lanes[lane.number].tasks
        most = [int(found.usage.levels(task).sum(axis=0).max()) for task in range(len(tasks.start))]
        last = sum(found.usage.after(len(most) - 1).values())
        order = np.argsort(tasks.start, kind="stable")
        values = np.append(np.array(most, np.int64)[order], last)
        count = len(values)
        self.file.events.append(
            TrackEvents(
                np.full(count, COUNTER),
                np.full(count, track),
                np.append(tasks.start[order], self.job.times.step),
                np.zeros(count, np.int64),
                number_fields(30, values),
            )
        )

    def path(self) -> None:
        """Write the critical path: a slice for each of its stretches inside one task."""
        legs = self.job.times.path.legs()
        count = len(legs.lane)
        texts = [
            f"{self.job.label(self.job.lanes[lane])}: {self._task_name(self.job.lanes[lane], task)}"
            for lane, task in zip(legs.lane.tolist(), legs.task.tolist(), strict=True)
        ]
        names = np.stack([self.file.names.of(texts), np.zeros(count, np.int64)], axis=1).reshape(-1)
        self.file.slices += count
        self.file.events.append(
            TrackEvents(
                np.tile([BEGIN, END], count),
                np.full(2 * count, self.path_track),
                np.stack([legs.start, legs.finish], axis=1).reshape(-1),
                names,
                constant(b"", 2 * count),
            )
        )

    def _tasks(self, lane: Lane) -> tuple[Ints, ByteRows]:
        """For each task of a lane the number of its name, and its arguments."""
        tasks, times = self.net.columns[lane.number].tasks, self.job.times.lanes[lane.number].tasks
        names = [self._task_name(lane, task) for task in range(len(tasks))]
        columns = [
            self.file.arg("microbatch", tasks.microbatch).where(~ONCE_A_STEP[tasks.kind]),
            self.file.arg("chunk", tasks.chunk),
            self.file.arg("critical_ns", times.critical),
            self.file.arg("slack_ns", times.slack),
        ]
        return self.file.names.of(names), join(*columns)[0]

    def _task_name(self, lane: Lane, task: int) -> str:
        tasks = self.net.columns[lane.number].tasks
        kind = list(TASK_KINDS.values())[int(tasks.kind[task])]
        if kind.once:
            return f"{kind.phase} {kind.words}"
        chunk = f", chunk {int(tasks.chunk[task])}" if tasks.chunk.max(initial=0) else ""
        return f"{kind.words} of micro-batch {int(tasks.microbatch[task])}{chunk}"

    def _op_args(self, lane: Lane) -> ByteRows:
        """The arguments of each op of a lane's class that are the same in all its runs."""
        ops, took = self.net.columns[lane.number].ops, self.job.durations.lanes[lane.number]
        computes = ops.type == TYPES.index("compute")
        category = [TYPES[kind] for kind in ops.type.tolist()]
        columns = [
            bytes_fields(22, texts(category)),
            self.file.text_arg("kind", ops.kind),
            self.file.text_arg("phase", ops.phase),
            self.file.text_arg("axis", ops.axis),
            self.file.text_arg("dtype", ops.dtype),
            self.file.text_arg("rule", took.rule),
            self.file.text_arg("dimension", [each or "" for each in took.dimension]),
            self.file.arg("flops", ops.flops).where(ops.flops > 0),
            self.file.arg("bytes", np.where(computes, ops.bytes, ops.size)),
        ]
        return join(*columns)[0]

    def _node_args(self, nodes: Ints) -> ByteRows:
        times = self.job.times
        critical = self.critical[nodes]
        flag = constant(
            text_field(4, number_field(1, self.file.keys["critical"]) + number_field(2, 1)), len(nodes)
        ).where(critical)
        slack = self.file.arg("slack_ns", times.slack[nodes])
        exposed = self.file.arg("exposed_ns", times.exposed[nodes]).where(times.exposed[nodes] > 0)
        return join(flag, slack, exposed)[0]

    def done(self, lanes: Sequence[Lane], left_out: tuple[str, ...]) -> Traced:
        """The whole trace."""
        numbers = {lane.number for lane in lanes}
        flows = sum(
            int(self.net.lane[source]) in numbers and int(self.net.lane[target]) in numbers
            for target, source in self.sent_from.items()
        )
        return Traced(self.file.content(), self.file.slices, flows, left_out)
