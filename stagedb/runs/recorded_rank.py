"""What a recording has of one rank, joined: ops of devices, the calls that launched them, operators, annotations.

A reader of a format adds spans to a `RecordedRank` as it reads them, in any order; `joined_ops` joins them.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from stagedb.runs.joined_ops import device_ops, host_ops
from stagedb.runs.memory_record import AllocatedMemory
from stagedb.runs.rank_spans import RankSpans
from stagedb.runs.rank_trace import NONE, Annotation, DeviceOps, ProcessGroup, RankTrace, RecordedCollective

_UNKNOWN_BUCKETS = (
    "{:,} all-reduces of gradients have no modules: sizes or modules of gradients are not known, or not exactly one "
    "choice of them has the size of the bucket"
)


@dataclass
class RecordedRank(RankSpans):
    """Spans of one rank, which a reader adds one by one, or a column at a time."""

    def add_op(
        self,
        name: str,
        times: tuple[int, int],
        stream: tuple[int, Hashable],
        category: int,
        correlation: int,
        size: int = NONE,
        collective: RecordedCollective | None = None,
    ) -> None:
        """An op of a device.

        name: of the kernel or copy. times: start and end in ns. stream: device, stream. category: place in
        `CATEGORIES`.

        correlation: number of the call that launched it. size: bytes of a copy. Either is `NONE` if unknown.
        """
        self.device.add(
            start=times[0],
            end=times[1],
            place=self.streams[stream],
            name=self.table[name],
            category=category,
            correlation=correlation,
            bytes=size,
            collective=self.place(collective),
        )

    def add_call(self, name: str, times: tuple[int, int], thread: Hashable, correlation: int) -> None:
        """Add a call of a host that launches ops.

        name: of the call. times: start and end in ns. thread: any key of the thread. correlation: the number that its
        ops have, too.
        """
        place = self.threads[thread]
        self.calls.add(start=times[0], end=times[1], place=place, name=self.table[name], correlation=correlation)

    def add_operator(
        self, name: str, times: tuple[int, int], thread: Hashable, collective: RecordedCollective | None = None
    ) -> None:
        """Add an operator of a host, whose inputs have no known shapes.

        name: of the operator. times: start and end in ns. thread: any key of the thread. collective: what it records of
        one.
        """
        place, number = self.threads[thread], self.place(collective)
        columns = {
            "place": place,
            "name": self.table[name],
            "collective": number,
            "shapes": NONE,
            "number": NONE,
            "sequence": NONE,
        }
        self.host.add(start=times[0], end=times[1], **columns)

    def add_annotation(self, name: str, times: tuple[int, int], thread: Hashable) -> None:
        """Add a range that the program named.

        name: of the range. times: start and end in ns. thread: any key of the thread.
        """
        self.annotations.append(Annotation(name, *times, self.threads[thread]))

    def trace(
        self,
        digest: str,
        *,
        tool: str,
        rank: int | None = None,
        world: int | None = None,
        devices: tuple[str, ...] = (),
        base: int = 0,
        events: Mapping[str, int],
        left_out: tuple[str, ...] = (),
        process: int | None = None,
        groups: tuple[ProcessGroup, ...] = (),
        numbered: bool = False,
        memory: tuple[AllocatedMemory, ...] = (),
    ) -> RankTrace | None:
        """What was read, joined; None if nothing took time.

        digest: of the file. tool: that wrote it. rank, world: of the job; None: unknown. devices: names of
        accelerators. base: ns since 1970 from which times count. events: their number by category. left_out: sentences
        on what was. process: the number of the host's. groups: of processes, by the file. numbered: whether collectives
        have their sequence numbers. memory: what was allocated.
        """
        ops = device_ops(self) if len(self.device) else host_ops(self)
        if not len(ops):
            return None
        base = _begin(ops, base)
        if self.unknown_buckets:
            left_out = (*left_out, _UNKNOWN_BUCKETS.format(self.unknown_buckets))
        return RankTrace(
            rank=rank,
            world=world,
            digest=digest,
            tool=tool,
            devices=devices,
            streams=self._stream_names(),
            names=tuple(self.table),
            ops=_since_1970(ops, base),
            collectives=tuple(self.numbers),
            annotations=tuple(self.annotations),
            events=dict(sorted(events.items())),
            left_out=left_out,
            process=process,
            groups=groups,
            shapes=tuple(self.shapes),
            modules=tuple(self.paths),
            numbered=numbered,
            memory=tuple(each.later(base) for each in memory),
        )

    def _stream_names(self) -> tuple[str, ...]:
        if not len(self.device):
            threads = [f"thread {place}" for place in range(len(self.threads))]
            return (*threads, *(f"background {place}" for place in range(len(self.streams))))
        several = len({device for device, _ in self.streams}) > 1
        return tuple(f"device {device} stream {name}" if several else f"stream {name}" for device, name in self.streams)


def _begin(ops: DeviceOps, base: int) -> int:
    """What is added to times, in ns: the base that a file names, unless its times are those since 1970 already."""
    return base if 0 < base < 1 << 62 and int(ops.start.min()) < base else 0


def _since_1970(ops: DeviceOps, base: int) -> DeviceOps:
    """Ops with times since 1970, where the file counts from a base, in ns."""
    if not base:
        return ops
    launched = np.where(ops.launched == NONE, NONE, ops.launched + base)
    return replace(ops, start=ops.start + base, end=ops.end + base, launched=launched)
