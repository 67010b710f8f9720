"""Timelines: when each event of a step begins and ends, and the critical path through them.

A lane's compute stream runs one node at a time. With `ready`, an idle stream takes the ready node that was issued
first, as simulators of traces do. With `issue`, it takes the nodes in issue order and waits for each. A communication
stream runs its nodes in issue order. A collective begins when its last member has arrived. A receive waits only for its
message.

The durations decide once which node a stream takes. From then on a step is a graph without choices, so that the cost of
a delay is defined.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from stagedb.errors import StagedbError, UsageError
from stagedb.files import shown
from stagedb.lowering.columns import RING_AXES, Ints
from stagedb.mentions import Word
from stagedb.systems.system import COMPUTE_MODES
from stagedb.timing.node_graph import COMPUTE_STREAM, NO_STREAM, NodeGraph, Reason

LONGEST_STEP = 1 << 62
"""The longest step that stagedb counts [ns of all ranks together]: above it sums would no longer be whole numbers."""

_MOST = 8


@dataclass(frozen=True)
class Order:
    """A network in which the order of every stream is decided. Its edges are all that a clock needs.

    events: in an order in which each event comes after its dependencies. source, target (nodes), reason: the edges that
    count, sorted by the event of the target; edges that others imply are left out. starts: where each event's edges
    begin, and the number of edges. before: the event of the source of each edge.
    """

    network: NodeGraph
    events: Ints
    source: Ints
    target: Ints
    reason: Ints
    starts: Ints
    before: Ints


@dataclass(frozen=True)
class Timeline:
    """When each event of a step begins and ends. A node of the network has the times of its event.

    order: the edges that count. length, start, finish: ns by event. step: the end of the last event [ns].
    """

    order: Order
    length: Ints
    start: Ints
    finish: Ints
    step: int

    @property
    def network(self) -> NodeGraph:
        """The network that was run."""
        return self.order.network


def run_step(
    network: NodeGraph,
    durations: Sequence[Ints],
    compute: str = "out-of-order",
    delays: Mapping[int, int] | None = None,
    blocking: Collection[str] = (),
) -> Timeline:
    """Run a step. durations: for each lane, ns of each op of its class. compute: one of `COMPUTE_MODES`.

    delays: for some nodes, the ns that they take in addition; the order of a stream is the one without delays.
    blocking: as in `decide`. Raises StagedbError for a step that never ends; the message names what waits.
    """
    length = network.lengths(durations)
    order = decide(network, length, compute, blocking)
    return clock(order, network.lengths(durations, delays) if delays else length)


def decide(network: NodeGraph, length: Ints, compute: str = "out-of-order", blocking: Collection[str] = ()) -> Order:
    """Decide the order in which streams take their nodes, for events of these lengths.

    blocking: mesh axes whose communication the compute stream waits for; the stream then takes its nodes in issue
    order. A framework that starts messages between stages and waits until they are sent blocks on `pp`. `cp` blocks on
    a ring over places of neighbours (`cpr`) too. length: ns of each event. compute: one of `COMPUTE_MODES`.
    """
    chosen, edges, slots = _choices(network, compute, blocking)
    if compute != "out-of-order":
        length = np.zeros_like(length)  # no stream has a choice, so that any order after the dependencies will do
    events, _ = _run(network, edges[0], edges[1], length, slots)
    if compute == "out-of-order":
        # The events in the order taken, and the node of each: an event that computes has one node.
        node = np.full(network.events, -1, np.int64)
        node[network.event[chosen]] = chosen
        taken = node[events]
        taken = taken[taken >= 0]
        edges = _with_order(network, edges, taken[np.argsort(network.lane[taken], kind="stable")])
    return _implied(network, events, *edges)


def step_length(
    network: NodeGraph, durations: Sequence[Ints], compute: str = "out-of-order", blocking: Collection[str] = ()
) -> int:
    """The step of `run_step` [ns], without its timeline: in less than half of the time.

    durations, compute, blocking: as in `run_step`.
    """
    _, edges, slots = _choices(network, compute, blocking)
    length = network.lengths(durations)
    if compute == "out-of-order":
        _, step = _run(network, edges[0], edges[1], length, slots)
    else:
        step = _longest_path(network, edges[0], edges[1], length)
    _check_length(network, step)
    return step


def _choices(network: NodeGraph, compute: str, blocking: Collection[str]) -> tuple[Ints, list[Ints], Ints]:
    """The nodes whose order their streams choose, the edges, and for each event the lane that chooses it, or -1."""
    if compute not in COMPUTE_MODES:
        raise UsageError(f"a compute stream takes nodes {' or '.join(COMPUTE_MODES)}, not {shown(compute)}")
    check_blocking(blocking, compute)
    chosen = np.flatnonzero(network.stream == COMPUTE_STREAM)
    edges = [network.source, network.target, network.reason]
    if compute != "out-of-order":
        chain = np.flatnonzero(network.stream != NO_STREAM)
        if compute == "in-order":
            chain = np.flatnonzero((network.stream == COMPUTE_STREAM) | _waited(network, blocking))
        edges = _with_order(network, edges, chain)
        chosen = chosen[:0]
    slots = np.full(network.events, -1, np.int64)
    slots[network.event[chosen]] = network.lane[chosen]
    return chosen, edges, slots


def check_blocking(blocking: Collection[str], compute: str) -> None:
    """Raise UsageError if a compute stream cannot wait for communication because it has no issue order.

    blocking: axes that are waited for. compute: one of `COMPUTE_MODES`.
    """
    if blocking and compute == "out-of-order":
        raise UsageError(
            f"what blocks a compute stream has a place in its order of issue: {Word('blocking')} needs a system that "
            "runs in-order (overlap.compute), not out-of-order"
        )


def _waited(network: NodeGraph, blocking: Collection[str]) -> npt.NDArray[np.bool_]:
    """For each node whether it communicates on one of these axes, and its stream has a place for it."""
    is_waited = np.zeros(len(network), bool)
    waited = {*blocking, *(RING_AXES if "cp" in blocking else ())}
    for lane, columns in zip(network.lanes, network.columns, strict=True):
        mine = slice(int(network.firsts[lane.number]), int(network.firsts[lane.number + 1]))
        is_waited[mine] = np.array([axis in waited for axis in columns.ops.axis], bool)[network.op[mine]]
    return is_waited & (network.stream > COMPUTE_STREAM)


def clock(order: Order, length: Ints) -> Timeline:
    """Run a step whose order is decided, with events of these lengths [ns]. Other lengths may have decided it.

    length: ns of each event.
    """
    starts, before = order.starts.tolist(), order.before.tolist()
    took = length.tolist()
    start, finish = [0] * len(took), [0] * len(took)
    for event in order.events.tolist():
        begin, end = starts[event], starts[event + 1]
        if end - begin == 1:
            at = finish[before[begin]]
        elif end == begin:
            at = 0
        else:
            at = max([finish[each] for each in before[begin:end]])
        start[event] = at
        finish[event] = at + took[event]
    _check_length(order.network, max(finish, default=0))
    ends = np.array(finish, np.int64)
    return Timeline(order, length, np.array(start, np.int64), ends, int(ends.max(initial=0)))


def _check_length(network: NodeGraph, step: int) -> None:
    world = len(network.workload.ranks)
    if step * world > LONGEST_STEP:
        raise UsageError(
            f"a step of {step / 1e9:.3g} s on {world} ranks is longer than stagedb counts: look for what takes "
            f"so long in the system's file ({Word('system')}), the measured durations and the scalings"
        )


def _with_order(network: NodeGraph, edges: list[Ints], taken: Ints) -> list[Ints]:
    """The edges, and edges between consecutive nodes of a lane's compute stream."""
    follows = np.flatnonzero(network.lane[taken[1:]] == network.lane[taken[:-1]])
    more = (taken[follows], taken[follows + 1], np.full(len(follows), Reason.STREAM, np.int64))
    return [np.concatenate(pair) for pair in zip(edges, more, strict=True)]


def _run(network: NodeGraph, source: Ints, target: Ints, length: Ints, slots: Ints) -> tuple[Ints, int]:
    """The events in the order in which they begin, and when the last one ends [ns].

    slots: for each event the lane whose compute stream it waits for, or -1.
    At every moment, first the events that are due end, and those that need no slot begin. When nothing moves any more,
    every idle slot takes the ready node that was issued first.
    """
    children, firsts, waiting = _followers(network.event[source], network.event[target], network.events)
    took, slot = length.tolist(), slots.tolist()
    count = network.events
    ready: list[list[int]] = [[] for _ in network.lanes]
    idle = [True] * len(network.lanes)
    moved: list[int] = []
    # Ends to come: time and event packed into one number.
    ends: list[int] = []
    begun: list[int] = []
    now = 0
    stack = [event for event, waits in enumerate(waiting) if not waits]
    while True:
        while stack:
            event = stack.pop()
            lane = slot[event]
            if lane >= 0:
                heappush(ready[lane], event)
                if idle[lane]:
                    moved.append(lane)
                continue
            begun.append(event)
            if took[event]:
                heappush(ends, (now + took[event]) * count + event)
                continue
            for child in children[firsts[event] : firsts[event + 1]]:
                waiting[child] -= 1
                if not waiting[child]:
                    stack.append(child)
        for lane in moved:
            if idle[lane] and ready[lane]:
                event = heappop(ready[lane])
                idle[lane] = False
                begun.append(event)
                heappush(ends, (now + took[event]) * count + event)
        moved.clear()
        if not ends:
            break
        now = ends[0] // count
        limit = (now + 1) * count
        while ends and ends[0] < limit:
            event = heappop(ends) % count
            lane = slot[event]
            if lane >= 0:
                idle[lane] = True
                moved.append(lane)
            for child in children[firsts[event] : firsts[event + 1]]:
                waiting[child] -= 1
                if not waiting[child]:
                    stack.append(child)
    if len(begun) < count:
        raise StagedbError(_stuck(network, source, target, np.array(begun, np.int64)))
    return np.array(begun, np.int64), now


def _longest_path(network: NodeGraph, source: Ints, target: Ints, length: Ints) -> int:
    """When the last event ends [ns], if no stream has a choice: each event begins when those before it have ended.

    The first edges are those of the network; those of the compute streams' order follow, and imply some of the first.
    """
    own = slice(len(network.source))
    implied = (network.stream[source[own]] == COMPUTE_STREAM) & (network.stream[target[own]] == COMPUTE_STREAM)
    implied &= network.lane[source[own]] == network.lane[target[own]]
    needed = np.ones(len(source), bool)
    needed[own] = ~implied
    before, after, took = _runs(network.event[source[needed]], network.event[target[needed]], length)
    children, firsts, waiting = _followers(before, after, len(took))
    start = [0] * len(took)
    step = ended = 0
    stack = [event for event, waits in enumerate(waiting) if not waits]
    while stack:
        event = stack.pop()
        ended += 1
        finish = start[event] + took[event]
        if finish > step:
            step = finish
        for child in children[firsts[event] : firsts[event + 1]]:
            if start[child] < finish:
                start[child] = finish
            waiting[child] -= 1
            if not waiting[child]:
                stack.append(child)
    if ended < len(took):
        # Some events never begin: `_run`, the slower way to run a step, raises the error that names them.
        _run(network, source, target, np.zeros_like(length), np.full(network.events, -1, np.int64))
    return step


def _runs(before: Ints, after: Ints, length: Ints) -> tuple[Ints, Ints, list[int]]:
    """The edges and the lengths with runs of events as one: each but the first waits for the one before it alone, for
    which no other event waits.
    """
    waits, awaited = (np.bincount(each, minlength=len(length)) for each in (after, before))
    inside = (after == before + 1) & (waits[after] == 1) & (awaited[before] == 1)
    first = np.ones(len(length), bool)
    first[after[inside]] = False
    run = np.cumsum(first) - 1
    if length.sum(dtype=np.float64) > LONGEST_STEP:
        length = length.astype(object)  # sums of any size, for the error that names the step
    took = np.add.reduceat(length, np.flatnonzero(first)) if len(length) else length
    return run[before[~inside]], run[after[~inside]], took.tolist()


def _followers(before: Ints, after: Ints, count: int) -> tuple[list[int], list[int], list[int]]:
    """The events that wait for event e are `children[firsts[e]:firsts[e + 1]]`; `waiting[e]`: how many e waits for."""
    by_source = np.argsort(before, kind="stable")
    firsts = np.searchsorted(before[by_source], np.arange(count + 1))
    waiting = np.bincount(after, minlength=count)
    return after[by_source].tolist(), firsts.tolist(), waiting.tolist()


def _stuck(network: NodeGraph, source: Ints, target: Ints, begun: Ints) -> str:
    """A description of what waits for what, if not all events began: the first node of each lane that did not begin."""
    left = np.ones(network.events, bool)
    left[begun] = False
    waiting = np.flatnonzero(left[network.event])
    open_edges = np.flatnonzero(left[network.event[source]] & left[network.event[target]])
    lanes, firsts = np.unique(network.lane[waiting], return_index=True)
    lines = []
    for node in waiting[firsts[:_MOST]].tolist():
        into = open_edges[network.event[target[open_edges]] == network.event[node]]
        reason = f" waits for {network.describe(int(source[into[0]]))}" if len(into) else ""
        lines.append(f"{network.describe(node)}{reason}")
    more = f"; and {len(lanes) - _MOST} more stages" if len(lanes) > _MOST else ""
    return f"this step never ends: {'; '.join(lines)}{more}"


def _implied(network: NodeGraph, events: Ints, source: Ints, target: Ints, reason: Ints) -> Order:
    """Leave out edges that others imply. If an event waits for several events of one stream, only the last counts."""
    rank = np.empty(network.events, np.int64)
    rank[events] = np.arange(network.events)
    stream = network.lane[source] * (len(network.streams) + 1) + network.stream[source] + 1
    # A receive is on no stream: it gets a number of its own, so that no other event implies it.
    stream = np.where(network.stream[source] < 0, -1 - source, stream)
    before, after = network.event[source], network.event[target]
    # If two edges join the same events, the dependency is kept, and not the order of the stream.
    order = np.lexsort((reason, -rank[before], stream, after))
    source, target, reason, stream = source[order], target[order], reason[order], stream[order]
    before, after = before[order], after[order]
    fresh = np.ones(len(order), bool)
    fresh[1:] = (after[1:] != after[:-1]) | (stream[1:] != stream[:-1])
    kept = np.flatnonzero(fresh)
    starts = np.searchsorted(after[kept], np.arange(network.events + 1))
    return Order(network, events, source[kept], target[kept], reason[kept], starts, before[kept])


# The critical path: the longest chain of a step through all lanes. Slack: how late every other event may be.

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
