"""A run that was recorded as a trace for Perfetto's viewer: all ranks on one clock, a group of tracks a rank."""

from collections.abc import Sequence

import numpy as np

from stagedb.reports.perfetto_packets import BEGIN, END, PerfettoFile, TrackEvents, flow_field, stack
from stagedb.reports.perfetto_trace import Traced
from stagedb.runs.stored_run import StoredRun
from stagedb.traces.protobuf_columns import ByteRows, Ints, bytes_fields, constant, join, texts


def trace_run(run: StoredRun) -> Traced:
    """A run as Perfetto's protobuf, with times in ns from its begin.

    Ops are slices inside those of the annotations around them. Arrows join the members of a collective in the order in
    which they begin, and both ends of a message. Streams of which ops overlap have several tracks.
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
        args = self._args(rank)
        at = 0
        for stream in dict.fromkeys(each.stream for each in facts):
            mine = np.array([place for place, each in enumerate(facts) if each.stream == stream], np.int64)
            for number, some in enumerate(_disjoint(ops.start, ops.end, mine)):
                name = stream if not number else f"{stream} ({number + 1})"
                self._stream(self.file.track(group, name, at), rank, some, args)
                at += 1

    def _stream(self, track: int, rank: int, mine: Ints, args: ByteRows) -> None:
        """Ops that follow each other, inside slices of their annotations."""
        ops, facts = self.run.timed[rank], self.run.lane_of[rank].ops
        blocks = [(facts[each].block, facts[each].step_number) for each in mine.tolist()]
        fresh = np.array([at == 0 or blocks[at] != blocks[at - 1] for at in range(len(blocks))], bool)
        firsts = np.flatnonzero(fresh)
        lasts = np.append(firsts[1:], len(blocks)) - 1
        named = np.array([bool(blocks[first][0]) for first in firsts.tolist()], bool)
        firsts, lasts = firsts[named], lasts[named]
        shown = np.arange(len(mine))
        keys = np.concatenate([4 * firsts, 4 * shown + 1, 4 * shown + 2, 4 * lasts + 3])
        place = np.argsort(keys, kind="stable")
        outer, inner = len(firsts), len(shown)
        self.file.slices += outer + inner
        start, end = ops.start[mine], ops.end[mine]
        names = self.file.names.of([facts[each].name for each in mine.tolist()])
        around = self.file.names.of([blocks[first][0] for first in firsts.tolist()])
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
        count = len(pieces)
        names = np.stack([self.file.names.of(words), np.zeros(count, np.int64)], axis=1).reshape(-1)
        self.file.slices += count
        self.file.events.append(
            TrackEvents(
                np.tile([BEGIN, END], count),
                np.full(2 * count, self.path_track),
                np.array([time for each in pieces for time in (each.start, each.end)], np.int64),
                names,
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
