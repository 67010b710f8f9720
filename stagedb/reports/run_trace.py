"""A run that was recorded as a trace for Perfetto's viewer: all ranks on one clock, a group of tracks a rank."""

from collections.abc import Sequence

import numpy as np

from stagedb.reports.perfetto_trace import BEGIN, END, PerfettoFile, Traced, TrackEvents, flow_field, stack
from stagedb.reports.terminal_chart import span
from stagedb.runs.measured_run import length
from stagedb.runs.overlaps import half_spans
from stagedb.runs.stored_run import StoredRun
from stagedb.traces.protobuf_columns import ByteRows, Ints, bytes_fields, constant, join, texts


def trace_run(run: StoredRun) -> Traced:
    """A run as Perfetto's protobuf, with times in ns from its begin.

    Ops are slices inside those of the annotations around them. Arrows join the members of a collective in the order in
    which they begin, and both ends of a message. Streams of which ops overlap have several tracks. A rank that pairs a
    forward with a backward has tracks of both halves, which name the exchange that neither hides.
    """
    writer = _TrackWriter(run)
    for place, rank in enumerate(run.timed):
        writer.rank(place, rank)
    writer.path()
    flows = sum(len(each.joint.members) - 1 for each in run.collectives)
    return Traced(writer.file.content(), writer.file.slices, flows, ())


class _TrackWriter:
    def __init__(self, run: StoredRun) -> None:
        self.run, self.file = run, PerfettoFile()
        self.flow = {
            (rank, op): number
            for number, each in enumerate(run.collectives, 1)
            if len(each.joint.members) > 1
            for rank, op in each.joint.members.items()
        }
        devices = ", ".join(dict.fromkeys(run.devices))
        self.root = self.file.track(0, f"{run.name}{f' on {devices}' if devices else ''}", 0, ordered=True)
        self.path_track = self.file.track(self.root, "critical path", 0)

    def rank(self, place: int, rank: int) -> None:
        """The tracks of a rank."""
        group = self.file.track(self.root, f"rank {rank}", place + 1, ordered=True)
        ops, facts = self.run.timed[rank], self.run.lane_of[rank].ops
        args, around = self._args(rank), self._annotations(rank)
        at = int(self._halves(group, rank))
        for stream in dict.fromkeys(each.stream for each in facts):
            mine = np.array([place for place, each in enumerate(facts) if each.stream == stream], np.int64)
            for number, some in enumerate(_disjoint(ops.start, ops.end, mine)):
                name = stream if not number else f"{stream} ({number + 1})"
                self._stream(self.file.track(group, name, at), rank, some, args, around[some])
                at += 1

    def _halves(self, group: int, rank: int) -> bool:
        """The tracks of two overlapped halves. Returns whether the rank has them."""
        halves = half_spans(self.run, rank)
        if not halves:
            return False
        exchange, exposed = (
            span(sum(length(getattr(each, name)) for each in halves)) for name in ("communicating", "exposed")
        )
        title = f"two overlapped halves: {exposed} of {exchange} of exchange exposed"
        both = self.file.track(group, title, 0, ordered=True)
        rows = [
            (f"{half.name}: {name}", name, spans)
            for half in halves
            for name, spans in (
                ("computing", half.computing),
                ("exchange", half.communicating),
                ("exposed exchange", half.exposed),
            )
        ]
        for at, (name, word, spans) in enumerate(rows):
            self._slices(self.file.track(both, name, at), [word] * len(spans[0]), spans)
        return True

    def _annotations(self, rank: int) -> Ints:
        """For each op of a rank the number of the annotation around its launch, 0 for none.

        An annotation ends where the host launches an op inside another one, on any stream.
        """
        facts = self.run.lane_of[rank].ops
        names: dict[tuple[str, int | None], int] = {}
        block = np.array([names.setdefault((each.block, each.step_number), len(names)) for each in facts], np.int64)
        inside = np.flatnonzero([bool(each.block) for each in facts])
        order = inside[np.argsort(self.run.timed[rank].launched[inside], kind="stable")]
        found = np.zeros(len(facts), np.int64)
        found[order] = np.cumsum(np.diff(block[order], prepend=-1) != 0)
        return found

    def _stream(self, track: int, rank: int, mine: Ints, args: ByteRows, annotations: Ints) -> None:
        """Ops that follow each other, inside slices of their annotations. mine: places. annotations: by op of these."""
        ops, facts = self.run.timed[rank], self.run.lane_of[rank].ops
        firsts = np.flatnonzero(np.diff(annotations, prepend=-1))
        lasts = np.append(firsts[1:], len(annotations)) - 1
        named = annotations[firsts] > 0
        firsts, lasts = firsts[named], lasts[named]
        shown = np.arange(len(mine))
        keys = np.concatenate([4 * firsts, 4 * shown + 1, 4 * shown + 2, 4 * lasts + 3])
        place = np.argsort(keys, kind="stable")
        outer, inner = len(firsts), len(shown)
        self.file.slices += outer + inner
        start, end = ops.start[mine], ops.end[mine]
        names = self.file.names.of([facts[each].name for each in mine.tolist()])
        around = self.file.names.of([facts[mine[first]].block for first in firsts.tolist()])
        nothing = np.zeros(inner + outer, np.int64)
        more = stack(constant(b"", outer), args.take(mine), constant(b"", inner + outer))
        self.file.events.append(
            TrackEvents(
                np.repeat([BEGIN, BEGIN, END, END], [outer, inner, inner, outer])[place],
                np.full(len(keys), track),
                np.concatenate([start[firsts], start, end, end[lasts]])[place],
                np.concatenate([around, names, nothing])[place],
                more.take(place),
            )
        )

    def _args(self, rank: int) -> ByteRows:
        """The category and the arguments of each op of a rank."""
        facts, found = self.run.lane_of[rank].ops, self.run.dependencies[rank]
        flows = np.array([self.flow.get((rank, op), 0) for op in range(len(facts))], np.int64)
        message = np.array([each.message or each.bytes or 0 for each in facts], np.int64)
        critical = np.array([each.critical for each in facts], np.int64)
        waited = self.run.timed[rank].end - self.run.timed[rank].start - found.work
        columns = [
            bytes_fields(22, texts([each.type for each in facts])),
            self.file.text_arg("kind", [each.kind for each in facts]),
            self.file.text_arg("phase", [each.phase for each in facts]),
            self.file.text_arg("axis", [each.axis or "" for each in facts]),
            self.file.text_arg("block", [each.block for each in facts]),
            self.file.text_arg("launcher", [each.launcher or "" for each in facts]),
            self.file.text_arg("dtype", [each.dtype or "" for each in facts]),
            self.file.arg("bytes", message).where(message > 0),
            self.file.arg("critical_ns", critical).where(critical > 0),
            self.file.arg("waited_ns", waited).where(waited > 0),
            self.file.arg("gap_ns", found.gap).where(found.gap > 0),
            flow_field(47, flows),
        ]
        return join(*columns)[0]

    def path(self) -> None:
        """The critical path: a slice for each op that it runs through."""
        pieces = [each for each in self.run.path if each.end > each.start]
        facts = self.run.lane_of
        words = [f"rank {each.rank}: {facts[each.rank].ops[each.op].name}" for each in pieces]
        start, end = (np.array([getattr(each, name) for each in pieces], np.int64) for name in ("start", "end"))
        self._slices(self.path_track, words, (start, end))

    def _slices(self, track: int, names: Sequence[str], spans: tuple[Ints, Ints]) -> None:
        """Slices of a track that follow each other. spans: their starts and ends in ns."""
        count = len(names)
        self.file.slices += count
        self.file.events.append(
            TrackEvents(
                np.tile([BEGIN, END], count),
                np.full(2 * count, track),
                np.stack(spans, axis=1).reshape(-1),
                np.stack([self.file.names.of(names), np.zeros(count, np.int64)], axis=1).reshape(-1),
                constant(b"", 2 * count),
            )
        )


def _disjoint(start: Ints, end: Ints, places: Ints) -> Sequence[Ints]:
    """Ops of a stream in as few parts as it takes for none to overlap: a viewer would take them as nested."""
    parts: list[list[int]] = []
    last: list[int] = []
    for place in places.tolist():
        free = next((at for at, until in enumerate(last) if until <= int(start[place])), None)
        if free is None:
            parts.append([])
            last.append(0)
            free = len(parts) - 1
        parts[free].append(place)
        last[free] = int(end[place])
    return [np.array(part, np.int64) for part in parts]
