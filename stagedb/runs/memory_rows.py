"""The memory of a run's ranks as rows: ranks of a lane whose allocators did the same share one."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stagedb.runs.lane_rows import Edge, LaneRows, Node, known
from stagedb.runs.memory_record import AllocatedMemory, MemoryMoment
from stagedb.runs.rank_trace import NONE

_LONGEST_NAME = 1_000


@dataclass(frozen=True)
class SharedMemory:
    """The memory of one device or host, alike on several ranks of a lane.

    id: of its node. ranks: by the rank's number, the memory with the rank's own times.
    """

    id: str
    lane: LaneRows
    ranks: dict[int, AllocatedMemory]

    @property
    def first(self) -> tuple[int, AllocatedMemory]:
        """The first of the ranks that share the memory, and its memory."""
        return next(iter(self.ranks.items()))

    def begin(self, rank: int) -> int:
        """When the run begins by the clock of a rank, in ns since 1970."""
        return self.lane.run.begin + self.lane.run.clocks[rank].offset

    def node(self) -> Node:
        """The memory as a node, with the times of its first rank."""
        rank, memory = self.first
        peak = memory.peak
        values = {
            "id": self.id,
            **self.lane.place,
            "place": memory.place,
            "absolute": memory.absolute,
            "ranks": len(self.ranks),
            "members": list(self.ranks),
            "events": memory.events,
            "peak": peak.bytes,
            "start": peak.time - self.begin(rank),
            "step_number": memory.step,
            "phase": peak.phase,
            "operator": _name(peak),
            "module": None if self.op is None else self._module(rank, self.op),
            "reserved": memory.reserved,
            "times": (memory.time - self.begin(rank)).tolist(),
            "allocated": memory.allocated.tolist(),
        }
        return self.lane.id, known(values)

    def levels(self) -> Iterator[Node]:
        """What is held at the moments of the fullest step."""
        rank, memory = self.first
        for each in memory.moments:
            values = {
                "id": f"{self.id}/{each.moment}",
                **self.lane.place,
                "moment": each.moment,
                "bytes": each.bytes,
                "start": each.time - self.begin(rank),
                "operator": _name(each),
            }
            yield self.id, known(values)

    def owners(self) -> Iterator[Edge]:
        """The ranks whose memory it is, each with the moment of its peak."""
        for rank, memory in self.ranks.items():
            yield self.id, f"{self.lane.run.id}/r{rank}", {"start": memory.peak.time - self.begin(rank)}

    def peak_op(self) -> Iterator[Edge]:
        """The op that the peak is for."""
        if self.op is not None:
            yield self.id, f"{self.lane.id}/{self.op}", {}

    @cached_property
    def op(self) -> int | None:
        """The op of the lane that the peak is for: the first one launched by the operator that allocates.

        Without one, the op that was launched last before; None at the begin.
        """
        rank, memory = self.first
        launched, peak = self.lane.run.ranks[rank].ops.launched, memory.peak
        if not len(launched):
            return None
        after = np.where((launched >= peak.time) & (launched <= peak.until), launched, np.iinfo(np.int64).max)
        if int(after.min()) <= peak.until:
            return int(after.argmin())
        before = np.where(launched <= peak.time, launched, NONE)
        return int(before.argmax()) if int(before.max()) != NONE else None

    def _module(self, rank: int, op: int) -> str | None:
        trace = self.lane.run.ranks[rank]
        module = int(trace.ops.module[op])
        return None if module == NONE else trace.modules[module]


def _name(moment: MemoryMoment) -> str | None:
    return None if moment.operator is None else moment.operator[:_LONGEST_NAME]


def shared_memory(lane: LaneRows) -> list[SharedMemory]:
    """The memory of the ranks of a lane, one for those that have the same bytes in the same order."""
    alike: dict[tuple[object, ...], dict[int, AllocatedMemory]] = {}
    for rank in lane.lane.ranks:
        for memory in lane.run.ranks[rank].memory:
            moments = tuple((each.moment, each.bytes, each.phase, each.operator) for each in memory.moments)
            levels = memory.allocated.tobytes()
            key = memory.place, memory.absolute, memory.events, memory.reserved, memory.step, moments, levels
            alike.setdefault(key, {})[rank] = memory
    return [SharedMemory(f"{lane.id}/m{number}", lane, ranks) for number, ranks in enumerate(alike.values())]
