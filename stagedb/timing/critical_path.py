"""The critical path: the longest chain of a step through all lanes. Slack: how late every other event may be."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stagedb.lowering.columns import Ints
from stagedb.timing.node_graph import NodeGraph, Reason
from stagedb.timing.timeline import Timeline

PARTS = ("kind", "axis", "phase", "stage", "class")
"""Criteria by which the critical path is divided."""


@dataclass(frozen=True)
class Legs:
    """The critical path task by task: lane, task (an index of its class's tasks), start and finish [ns] of each leg.

    first: the place of the leg's first node on the path.
    """

    first: Ints
    lane: Ints
    task: Ints
    start: Ints
    finish: Ints


@dataclass(frozen=True)
class Path:
    """The critical path of a step, node by node: each node begins when the one before it ends.

    network: whose nodes these are. node, start, finish [ns]: one value a node. reason: why the node began no earlier
    (`Reason`). Where a node waits for another lane, the node of that lane (a message or a member of its group) comes
    before it.
    """

    network: NodeGraph
    node: Ints
    start: Ints
    finish: Ints
    reason: Ints

    def __len__(self) -> int:
        return len(self.node)

    @property
    def length(self) -> Ints:
        """Nanoseconds of each node."""
        return self.finish - self.start

    @property
    def lane(self) -> Ints:
        """The lane of each node."""
        return self.network.lane[self.node]

    @property
    def task(self) -> Ints:
        """The task of each node, an index of the tasks of its class."""
        return self.network.task[self.node]

    @property
    def op(self) -> Ints:
        """The op of each node, a row of its class's ops."""
        return self.network.op[self.node]

    def legs(self) -> Legs:
        """The path with consecutive nodes of one task joined into one leg."""
        lane, task = self.lane, self.task
        fresh = np.ones(len(self), bool)
        fresh[1:] = (lane[1:] != lane[:-1]) | (task[1:] != task[:-1])
        firsts = np.flatnonzero(fresh)
        lasts = np.append(firsts[1:], len(self)) - 1
        return Legs(firsts, lane[firsts], task[firsts], self.start[firsts], self.finish[lasts])

    def parts(self, by: str) -> Mapping[str, int]:
        """Nanoseconds of the path by one of `PARTS`, the most first. Compute has no axis and is a part of its own."""
        by_name: dict[str, int] = {}
        for lane, columns in zip(self.network.lanes, self.network.columns, strict=True):
            on_lane = self.lane == lane.number
            took = np.bincount(self.op[on_lane], self.length[on_lane], len(columns.ops)).astype(np.int64)
            names = {
                "kind": columns.ops.kind,
                "axis": tuple(axis or "compute" for axis in columns.ops.axis),
                "phase": columns.ops.phase,
            }.get(by) or (str(lane.stage if by == "stage" else lane.rank_class),) * len(columns.ops)
            for op in np.flatnonzero(took).tolist():
                by_name[names[op]] = by_name.get(names[op], 0) + int(took[op])
        return dict(sorted(by_name.items(), key=lambda each: -each[1]))


def slack(found: Timeline) -> Ints:
    """By how many ns each event may take longer, or begin later, without making the step longer.

    It holds for one event at a time: several events share their slack.
    """
    order = found.order
    starts, before, took = order.starts.tolist(), order.before.tolist(), found.length.tolist()
    late = [found.step] * len(took)
    for event in reversed(order.events.tolist()):
        begin = late[event] - took[event]
        for earlier in before[starts[event] : starts[event + 1]]:
            if late[earlier] > begin:
                late[earlier] = begin
    return np.array(late, np.int64) - found.finish


def arrivals(found: Timeline) -> Ints:
    """When each node was ready [ns]: all that it waits for in its own lane, its stream included, had ended.

    It begins then, unless it waits for a message or for members of its group.
    """
    order = found.order
    own = order.reason != Reason.MESSAGE
    ready = np.zeros(len(found.network), np.int64)
    np.maximum.at(ready, order.target[own], found.finish[order.before[own]])
    return ready


def critical_path(found: Timeline) -> Path:
    """One longest chain of a step. Among equals: the one that ends with the earliest issued node of the first lane.

    Where a node waited for several nodes that ended together, the chain goes on through the first of these: a node that
    it depends on, the node that its stream was busy with, the node that another member of its group waited for.
    """
    order, net = found.order, found.network
    starts, before, source, target, reason = (
        column.tolist() for column in (order.starts, order.before, order.source, order.target, order.reason)
    )
    begun, ended, event_of = found.start.tolist(), found.finish.tolist(), net.event.tolist()
    node = int(np.flatnonzero(found.finish[net.event] == found.step)[0]) if len(net) else -1
    nodes, reasons = [], []
    while node >= 0:
        event = event_of[node]
        start = begun[event]
        best = (len(Reason), -1)
        if start:
            for edge in range(starts[event], starts[event + 1]):
                if ended[before[edge]] == start:
                    why = reason[edge] if target[edge] == node else Reason.MEMBER
                    best = min(best, (why, edge))
        nodes.append(node)
        if best[1] < 0:
            reasons.append(int(Reason.START))
            break
        reasons.append(int(best[0]))
        node = source[best[1]]
    chosen = np.array(nodes[::-1], np.int64)
    at = net.event[chosen]
    return Path(net, chosen, found.start[at], found.finish[at], np.array(reasons[::-1], np.int64))
