"""Where the time of a step goes: lane by lane, op by op, task by task."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stagedb.lowering.columns import RECV, Ints
from stagedb.timing.node_graph import COMPUTE_STREAM, NodeGraph, Reason
from stagedb.timing.timeline import Path, Timeline, arrivals, critical_path, slack


@dataclass(frozen=True)
class NodeTimes:
    """The nodes of a lane in issue order, one a row; times in ns.

    task, op: indexes of its class's. arrival: when all its dependencies in its own lane had ended; from then to `start`
    it waits for a message or for members of its group. exposed: how long it communicates while the lane computes
    nothing.
    """

    task: Ints
    op: Ints
    arrival: Ints
    start: Ints
    finish: Ints
    slack: Ints
    exposed: Ints


@dataclass(frozen=True)
class OpTimes:
    """The ops of a lane's class, one a row: the number of runs of each in a step, and ns of all its runs together.

    time: ns that it takes, without waits for the host; for a collective, from the arrival of its last member. exposed:
    for communication, the time during which the lane computes nothing. critical: time on the critical path;
    `critical_runs`: the number of runs on it. slack: the least slack of its runs, -1 where it never runs.
    """

    runs: Ints
    time: Ints
    exposed: Ints
    critical: Ints
    critical_runs: Ints
    slack: Ints


@dataclass(frozen=True)
class TaskTimes:
    """The tasks of a lane, one a row: the beginning of its first node and the end of its last one [ns], its time on
    the critical path and the least slack of its nodes [ns]. Receives count from the arrival of their messages.
    """

    start: Ints
    finish: Ints
    critical: Ints
    slack: Ints


@dataclass(frozen=True)
class LaneTimes:
    """The step of one lane [ns]: `busy + exposed + bubble + idle` is the length of the step.

    busy: computing, without waits for the host. exposed: communicating and not computing. bubble: waiting for another
    stage, for a message or for its member of a group; in a pipeline also the time between the lane's end and the end of
    the step. idle: waiting for members of its own stage, for its host to issue what it computes, and the rest.
    communication: collectives and sends, hidden ones included. Each moment counts once.
    """

    busy: int
    exposed: int
    bubble: int
    idle: int
    communication: int
    ops: OpTimes
    tasks: TaskTimes


@dataclass(frozen=True)
class StepTimes:
    """A timeline and the figures that follow from it. slack, exposed and arrival [ns]: one value a node."""

    timeline: Timeline
    path: Path
    slack: Ints
    exposed: Ints
    arrival: Ints
    lanes: tuple[LaneTimes, ...]

    @property
    def step(self) -> int:
        """Nanoseconds of the step."""
        return self.timeline.step

    @property
    def network(self) -> NodeGraph:
        """The network that was run."""
        return self.timeline.network

    def nodes(self, lane: int) -> NodeTimes:
        """The nodes that a lane runs."""
        net, timed = self.network, self.timeline
        at = slice(int(net.firsts[lane]), int(net.firsts[lane + 1]))
        event = net.event[at]
        return NodeTimes(
            task=net.task[at],
            op=net.op[at],
            arrival=self.arrival[at],
            start=timed.start[event],
            finish=timed.finish[event],
            slack=self.slack[at],
            exposed=self.exposed[at],
        )

    def class_ops(self, number: int) -> OpTimes:
        """The ops of a rank class, one rank of each of its lanes added up: sums of times, and the least slack.

        number: of the class.
        """
        lanes = [
            of_lane.ops
            for lane, of_lane in zip(self.network.lanes, self.lanes, strict=True)
            if lane.rank_class == number
        ]
        sums = {name: np.sum([getattr(of_lane, name) for of_lane in lanes], axis=0) for name in _SUMS}
        return OpTimes(**sums, slack=np.min([of_lane.slack for of_lane in lanes], axis=0))


_SUMS = ("runs", "time", "exposed", "critical", "critical_runs")


@dataclass(frozen=True)
class Cover:
    """The time that spans cover: disjoint spans in ascending order. start, finish: ns."""

    start: Ints
    finish: Ints

    @classmethod
    def of(cls, start: Ints, finish: Ints) -> "Cover":
        """The cover of spans in any order; spans of no length cover nothing. start, finish: ns of each span."""
        some = finish > start
        order = np.argsort(start[some], kind="stable")
        start, finish = start[some][order], np.maximum.accumulate(finish[some][order])
        fresh = np.ones(len(start), bool)
        fresh[1:] = start[1:] > finish[:-1]
        ends = np.append(np.flatnonzero(fresh)[1:] - 1, len(start) - 1) if len(start) else np.zeros(0, np.int64)
        return cls(start[fresh], finish[ends])

    def before(self, time: Ints) -> Ints:
        """The number of covered ns before each of these times. time: moments [ns]."""
        if not len(self.start):
            return np.zeros(len(time), np.int64)
        at = np.searchsorted(self.start, time, side="right") - 1
        covered = np.concatenate([[0], np.cumsum(self.finish - self.start)])
        inside: Ints = np.where(at >= 0, covered[at] + np.minimum(time, self.finish[at]) - self.start[at], 0)
        return inside

    @property
    def total(self) -> int:
        """The number of covered ns."""
        return int((self.finish - self.start).sum())

    def gaps(self, end: int) -> tuple[Ints, Ints]:
        """Beginning and end of each gap between 0 and `end`."""
        begins, ends = np.concatenate([[0], self.finish]), np.append(self.start, end)
        some = ends > begins
        return begins[some].astype(np.int64), ends[some].astype(np.int64)


def step_times(found: Timeline, waits: Sequence[Ints | None] = ()) -> StepTimes:
    """The figures of a timeline: critical path, slack, and where each lane's time goes.

    waits: for each lane how much of each op's duration it waits for its host [ns]; None, or no lanes: nothing does.
    """
    net = found.network
    late, path, ready = slack(found)[net.event], critical_path(found), arrivals(found)
    exposed = np.zeros(len(net), np.int64)
    lanes = []
    for lane in net.lanes:
        at = slice(int(net.firsts[lane.number]), int(net.firsts[lane.number + 1]))
        waited = waits[lane.number] if waits else None
        lanes.append(_lane(found, path, late, ready, exposed, lane.number, at, waited))
    return StepTimes(found, path, late, exposed, ready, tuple(lanes))


def _lane(
    found: Timeline, path: Path, late: Ints, ready: Ints, exposed: Ints, number: int, at: slice, waits: Ints | None
) -> LaneTimes:
    net = found.network
    start, finish, stream = found.start[net.event[at]], found.finish[net.event[at]], net.stream[at]
    computes, talks = stream == COMPUTE_STREAM, stream > COMPUTE_STREAM
    computing = Cover.of(start[computes], finish[computes])
    talking = Cover.of(start[talks], finish[talks])
    every = Cover.of(start, finish)
    hidden = computing.before(finish) - computing.before(start)
    exposed[at] = np.where(talks, finish - start - hidden, 0)
    bubble = _bubble(found, ready, every, at)
    path_nodes = path.node[path.lane == number]
    ops = _ops(found, late, exposed, path_nodes, number, at)
    busy = computing.total
    shown = every.total - busy
    waited = 0
    if waits is not None:
        waited = int((waits * ops.runs).sum())
        ops = replace(ops, time=ops.time - waits * ops.runs)
    return LaneTimes(
        busy=busy - waited,
        exposed=shown,
        bubble=bubble,
        idle=found.step - busy - shown - bubble + waited,
        communication=talking.total,
        ops=ops,
        tasks=_tasks(found, late, path_nodes, number, at),
    )


def _ops(found: Timeline, late: Ints, exposed: Ints, critical: Ints, number: int, at: slice) -> OpTimes:
    net = found.network
    count, op = len(net.columns[number].ops), net.op[at]
    took = found.finish - found.start

    def sums(index: Ints, values: Ints) -> Ints:
        total = np.zeros(count, np.int64)
        np.add.at(total, index, values)
        return total

    least = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(least, op, late[at])
    runs = np.bincount(op, minlength=count).astype(np.int64)
    return OpTimes(
        runs=runs,
        time=sums(op, took[net.event[at]]),
        exposed=sums(op, exposed[at]),
        critical=sums(net.op[critical], took[net.event[critical]]),
        critical_runs=np.bincount(net.op[critical], minlength=count).astype(np.int64),
        slack=np.where(runs > 0, least, -1),
    )


def _tasks(found: Timeline, late: Ints, critical: Ints, number: int, at: slice) -> TaskTimes:
    net = found.network
    count, task = len(net.columns[number].tasks), net.task[at]
    begin = np.full(count, found.step, np.int64)
    np.minimum.at(begin, task, found.start[net.event[at]])
    end, on_path = np.zeros(count, np.int64), np.zeros(count, np.int64)
    np.maximum.at(end, task, found.finish[net.event[at]])
    np.add.at(on_path, net.task[critical], (found.finish - found.start)[net.event[critical]])
    least = np.full(count, found.step, np.int64)
    np.minimum.at(least, task, late[at])
    return TaskTimes(np.minimum(begin, end), end, on_path, least)


def _bubble(found: Timeline, ready: Ints, every: Cover, at: slice) -> int:
    """The part of a lane's time without compute and communication that it spends waiting for other stages."""
    net = found.network
    event = net.event[at]
    start, finish = found.start[event], found.finish[event]
    works = np.flatnonzero(finish > start)
    works = works[np.argsort(start[works], kind="stable")]
    piped = any(lane.stage for lane in net.lanes)
    total = 0
    for begin, end in zip(*(each.tolist() for each in every.gaps(found.step)), strict=True):
        place = int(np.searchsorted(start[works], end))
        if place < len(works) and start[works[place]] == end:
            total += _stage_wait(found, ready, at.start + int(works[place]), begin)
        elif piped:
            total += end - begin
    return total


def _stage_wait(found: Timeline, ready: Ints, node: int, begin: int) -> int:
    """The time between `begin` and a node's start, during which its lane did nothing, that it waited for other stages.

    It goes back from node to node of the lane. Each was ready when the one before it ended, which took no time.
    """
    order, net = found.order, found.network
    stages = [lane.stage for lane in net.lanes]
    total = 0
    while True:
        event = int(net.event[node])
        edges = range(int(order.starts[event]), int(order.starts[event + 1]))
        start = int(found.start[event])
        if start > ready[node]:
            late = [edge for edge in edges if found.finish[order.before[edge]] == start]
            stage = stages[net.lane[node]]
            # The node that is waited for: of a receive, the edge's source, a send; of a collective, the edge's target,
            # a member in its own lane.
            ends = [order.source if net.type[node] == RECV else order.target for _ in late]
            if all(stages[net.lane[end[edge]]] != stage for end, edge in zip(ends, late, strict=True)):
                total += max(start - max(int(ready[node]), begin), 0)
        if ready[node] <= begin:
            return total
        node = next(
            int(order.source[edge])
            for edge in edges
            if order.target[edge] == node
            and order.reason[edge] != Reason.MESSAGE
            and found.finish[order.before[edge]] == ready[node]
        )
