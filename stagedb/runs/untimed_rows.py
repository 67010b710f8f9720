"""A run without times as rows: its nodes and relationships, with the properties of other runs that are no times."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain

from stagedb.runs.clocks import JointCollective
from stagedb.runs.lane_rows import LONGEST_NAME, Edge, LaneOps, Node, known
from stagedb.runs.measured_run import UntimedRun
from stagedb.runs.rank_trace import NONE, PHASES
from stagedb.runs.run_rows import RowSource, RunRows, collective_facts, facts_of, in_lane, lane_facts, rank_facts


def untimed_rows(run: UntimedRun, files: Mapping[int, str | None]) -> RunRows:
    """The rows of a run without times.

    run: what was read. files: names of files by rank, where they are to be kept.
    """
    lanes = [_UntimedLane(run, lane) for lane in run.lanes]
    ops, tasks, following, waits = (
        sum(getattr(lane, name) for lane in lanes) for name in ("op_count", "task_count", "next_count", "wait_count")
    )
    nodes = {
        "RunLane": RowSource(len(lanes), lambda: ((run.id, lane_facts(each)) for each in lanes)),
        "RunRank": RowSource(
            len(run.ranks), lambda: ((run.id, rank_facts(run, rank, files.get(rank))) for rank in run.ranks)
        ),
        "RunOp": RowSource(ops, lambda: chain.from_iterable(lane.ops() for lane in lanes)),
        "RunTask": RowSource(tasks, lambda: chain.from_iterable(lane.tasks() for lane in lanes)),
        "RunCollective": RowSource(len(run.calls), partial(_collectives, run)),
    }
    edges = {
        ("IN_LANE", "RunRank", "RunLane"): RowSource(len(run.ranks), partial(in_lane, run)),
        ("NEXT", "RunOp", "RunOp"): RowSource(
            following, lambda: chain.from_iterable(map(_UntimedLane.next_ops, lanes))
        ),
        ("DEPENDS_ON", "RunOp", "RunOp"): RowSource(waits, lambda: chain.from_iterable(each.waits() for each in lanes)),
        ("HAS_MEMBER", "RunCollective", "RunOp"): RowSource(
            sum(len(call.members) for call in run.calls), partial(_members, run)
        ),
    }
    return RunRows(facts_of(run), nodes, edges)


@dataclass(frozen=True)
class _UntimedLane(LaneOps):
    """The rows of one lane of a run without times."""

    run: UntimedRun

    def ops(self) -> Iterator[Node]:
        """The ops, in their order."""
        first = self.lane.ranks[0]
        names, order = self.run.ranks[first].names, self.run.orders[first]
        descriptions = self.descriptions(self.run.types[first], self.run.kinds[first])
        rows = zip(descriptions, order.dtypes, order.callers, strict=True)
        for index, (description, dtype, caller) in enumerate(rows):
            values = {
                **description,
                "id": f"{self.id}/{index}",
                "index": index,
                "dtype": description.get("dtype") or dtype or None,
                "caller": None if caller == NONE else names[caller][:LONGEST_NAME],
                # There is no duration that could have a source.
                "rule": None,
            }
            yield self.id, known(values)

    def tasks(self) -> Iterator[Node]:
        """The tasks, in the order of their first ops."""
        for number, (step, phase) in enumerate(self.tasks_of_ops[0]):
            values = {
                "id": f"{self.id}/t{number}",
                **self.place,
                "index": number,
                "kind": PHASES[phase],
                "step_number": None if step == NONE else step,
                "chunk": 0,
            }
            yield self.id, known(values)

    @property
    def _waits(self) -> tuple[tuple[int, int], ...]:
        return self.run.orders[self.lane.ranks[0]].waits

    @property
    def wait_count(self) -> int:
        """How many dependencies its ops have."""
        return len(self._waits)

    def waits(self) -> Iterator[Edge]:
        """The edges from each op to those that it depends on."""
        return ((f"{self.id}/{op}", f"{self.id}/{other}", {}) for op, other in self._waits)


def _in_order(run: UntimedRun) -> list[JointCollective]:
    """The collectives by the places of their first members."""
    return sorted(run.calls, key=lambda call: min((place, rank) for rank, place in call.members.items()))


def _collectives(run: UntimedRun) -> Iterator[Node]:
    for number, call in enumerate(_in_order(run)):
        yield run.id, known({**collective_facts(run, number, call), "members": sorted(call.members)})


def _members(run: UntimedRun) -> Iterator[Edge]:
    for number, call in enumerate(_in_order(run)):
        for rank, place in sorted(call.members.items()):
            yield f"{run.id}/c{number}", f"{run.id}/{run.lane_of[rank].number}/{place}", {"rank": rank}
