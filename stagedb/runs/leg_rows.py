"""The critical path of a run as rows: legs, which are pieces that follow each other in one task of one rank."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stagedb.runs.lane_rows import Edge, LaneRows, Node
from stagedb.runs.measured_path import REASONS
from stagedb.runs.measured_run import MeasuredRun
from stagedb.runs.rank_trace import Integers, Places, rows_of


@dataclass(frozen=True)
class LegRows:
    """The rows of the path. lanes: by number."""

    run: MeasuredRun
    lanes: Mapping[int, LaneRows]

    @cached_property
    def _task(self) -> Places:
        """For each piece the number of its task on its lane."""
        path = self.run.path
        found = np.empty(len(path), np.int32)
        for rank, lane in self.run.lane_of.items():
            here = path.rank == rank
            found[here] = self.lanes[lane.number].task_of(path.op[here])
        return found

    @cached_property
    def _first(self) -> Integers:
        """The places of the first pieces of the legs."""
        rank, task = self.run.path.rank, self._task
        return np.flatnonzero(np.concatenate(([True], (rank[1:] != rank[:-1]) | (task[1:] != task[:-1]))))

    @property
    def count(self) -> int:
        """The number of legs."""
        return len(self._first)

    def _id(self, number: int) -> str:
        return f"{self.run.id}/l{number}"

    def legs(self) -> Iterator[Node]:
        """The legs, from the begin of the run on."""
        path, first = self.run.path, self._first
        last = np.append(first[1:], len(path)) - 1
        start, idle = path.start[first] - path.idle[first], np.add.reduceat(path.idle, first)
        rows = rows_of(path.rank[first], start, path.end[last], idle, path.reason[first])
        for number, (rank, begin, finish, gaps, reason) in enumerate(rows):
            values = {
                "id": self._id(number),
                **self.lanes[self.run.lane_of[rank].number].place,
                "rank": rank,
                "number": number,
                "start": begin,
                "finish": finish,
                "ns": finish - begin,
                "idle": gaps,
                "reason": REASONS[reason],
            }
            yield self.run.id, values

    def first(self) -> Iterator[Edge]:
        """The edge from the run to the first leg of its critical path."""
        yield self.run.id, self._id(0), {}

    def following(self) -> Iterator[Edge]:
        """The edges from each leg to the next one."""
        return ((self._id(number), self._id(number + 1), {}) for number in range(self.count - 1))

    def tasks(self) -> Iterator[Edge]:
        """The edges from each leg to the task that it is a part of."""
        rows = rows_of(self.run.path.rank[self._first], self._task[self._first])
        for number, (rank, task) in enumerate(rows):
            yield self._id(number), f"{self.run.id}/{self.run.lane_of[rank].number}/t{task}", {}

    def ops(self) -> Iterator[Edge]:
        """The edges from each leg to the ops that it consists of."""
        path, first = self.run.path, self._first
        lengths = np.diff(np.append(first, len(path)))
        leg = np.repeat(np.arange(len(first)), lengths)
        place = np.arange(len(path)) - first[leg]
        lanes = {rank: f"{self.run.id}/{lane.number}" for rank, lane in self.run.lane_of.items()}
        for number, at, rank, op, ns in rows_of(leg, place, path.rank, path.op, path.end - path.start):
            yield self._id(number), f"{lanes[rank]}/{op}", {"number": at, "ns": ns}
