"""When everything of a step begins and ends: a network with a clock.

A lane's compute stream runs one node at a time. With `ready` it takes, whenever it is idle, the earliest issued of the
nodes that are ready, as simulators of traces do; with `issue` it takes them as issued and waits for each. Nodes of a
communication stream run as issued, a collective from when the last of its members has come to it. What receives waits
for its message only.

Which node a stream takes is decided once, by the durations; from then on a step is a graph without choices, so that it
can be told what a delay costs.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from stagedb.errors import StagedbError, UsageError
from stagedb.systems.system import COMPUTE
from stagedb.timing.lane_network import COMPUTE_STREAM, NO_STREAM, Network, Reason
from stagedb.workload.instance_columns import Ints

LONGEST_STEP = 1 << 62
"""ns of a step, of all ranks together, that stagedb counts: above it sums would no longer be whole numbers."""

_MOST = 8


@dataclass(frozen=True)
class Order:
    """A network whose streams' orders are decided: edges that say all that a clock has to know.

    events: in an order in which each stands after what it waits for. source, target (nodes), reason: the edges that
    count, sorted by the event of the target; those that others imply are left out. starts: where each event's edges
    begin, and the number of edges. before: of each edge the event of its source.
    """

    network: Network
    events: Ints
    source: Ints
    target: Ints
    reason: Ints
    starts: Ints
    before: Ints


@dataclass(frozen=True)
class Timeline:
    """Begin and end of every event [ns]; a node's are those of its event. step: when the last one ends."""

    order: Order
    length: Ints
    start: Ints
    finish: Ints
    step: int

    @property
    def network(self) -> Network:
        """What was run."""
        return self.order.network


def run_step(
    network: Network,
    durations: Sequence[Ints],
    compute: str = "out-of-order",
    delays: Mapping[int, int] | None = None,
    blocking: Collection[str] = (),
) -> Timeline:
    """Run a step. durations: of each lane the ns that each op of its class takes. compute: one of `COMPUTE`.

    delays: of some nodes, by how many ns more they take; the streams' orders are those without. blocking: as of
    `decide`. Raises StagedbError, naming what waits, where a step never ends.
    """
    length = network.lengths(durations)
    order = decide(network, length, compute, blocking)
    return clock(order, network.lengths(durations, delays) if delays else length)


def decide(network: Network, length: Ints, compute: str = "out-of-order", blocking: Collection[str] = ()) -> Order:
    """Decide which nodes the streams take when, with events of these lengths.

    blocking: mesh axes whose communication the compute stream, which then takes its nodes as issued, waits for: a
    framework that calls for messages between stages and waits until they are sent has those of `pp` in its way.
    """
    if compute not in COMPUTE:
        raise UsageError(f"a compute stream takes nodes {' or '.join(COMPUTE)}, not {compute!r}")
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
    events = _run(network, edges[0], edges[1], length, slots)
    if compute == "out-of-order":
        # The events as taken, and of each its node: those that compute are of one node alone.
        node = np.full(network.events, -1, np.int64)
        node[network.event[chosen]] = chosen
        taken = node[events]
        taken = taken[taken >= 0]
        edges = _with_order(network, edges, taken[np.argsort(network.lane[taken], kind="stable")])
    return _implied(network, events, *edges)


def check_blocking(blocking: Collection[str], compute: str) -> None:
    """Raise UsageError where a compute stream cannot wait for communication: it has no order of issue."""
    if blocking and compute == "out-of-order":
        raise UsageError(
            "what blocks a compute stream has a place in its order of issue: --blocking needs a system that runs "
            "in-order (overlap.compute), not out-of-order"
        )


def _waited(network: Network, blocking: Collection[str]) -> npt.NDArray[np.bool_]:
    """Of each node whether it communicates on one of these axes, and its stream has a place for it."""
    found = np.zeros(len(network), bool)
    for lane, columns in zip(network.lanes, network.columns, strict=True):
        mine = slice(int(network.firsts[lane.number]), int(network.firsts[lane.number + 1]))
        found[mine] = np.array([axis in blocking for axis in columns.ops.axis], bool)[network.op[mine]]
    return found & (network.stream > COMPUTE_STREAM)


def clock(order: Order, length: Ints) -> Timeline:
    """Run a step whose order is decided, with events of these lengths [ns], which may be others."""
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
    world = len(order.network.workload.ranks)
    if max(finish, default=0) * world > LONGEST_STEP:
        raise UsageError(
            f"a step of {max(finish) / 1e9:.3g} s on {world} ranks is longer than stagedb counts: look for what takes "
            "so long in the system's file (--system), the measured durations and the scalings"
        )
    ends = np.array(finish, np.int64)
    return Timeline(order, length, np.array(start, np.int64), ends, int(ends.max(initial=0)))


def _with_order(network: Network, edges: list[Ints], taken: Ints) -> list[Ints]:
    """The edges, and those between the nodes that a lane's compute stream takes one after the other."""
    follows = np.flatnonzero(network.lane[taken[1:]] == network.lane[taken[:-1]])
    more = (taken[follows], taken[follows + 1], np.full(len(follows), Reason.STREAM, np.int64))
    return [np.concatenate(pair) for pair in zip(edges, more, strict=True)]


def _run(network: Network, source: Ints, target: Ints, length: Ints, slots: Ints) -> Ints:
    """The events in the order in which they begin. `slots`: of each the lane whose compute stream it waits for, or -1.

    At every moment first all ends that ends then, and what needs no slot begins; when nothing moves any more, every
    idle slot takes the earliest issued node that is ready.
    """
    children, firsts, waiting = _followers(network, source, target)
    took, slot = length.tolist(), slots.tolist()
    count = network.events
    ready: list[list[int]] = [[] for _ in network.lanes]
    idle = [True] * len(network.lanes)
    moved: list[int] = []
    # Ends to come: time and event in one number.
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
    return np.array(begun, np.int64)


def _followers(network: Network, source: Ints, target: Ints) -> tuple[list[int], list[int], list[int]]:
    """The events that wait for event e are `children[firsts[e]:firsts[e + 1]]`; `waiting[e]`: for how many e waits."""
    before, after = network.event[source], network.event[target]
    by_source = np.argsort(before, kind="stable")
    firsts = np.searchsorted(before[by_source], np.arange(network.events + 1))
    waiting = np.bincount(after, minlength=network.events)
    return after[by_source].tolist(), firsts.tolist(), waiting.tolist()


def _stuck(network: Network, source: Ints, target: Ints, begun: Ints) -> str:
    """What waits for what, where not all events began: of each lane the first node that did not."""
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


def _implied(network: Network, events: Ints, source: Ints, target: Ints, reason: Ints) -> Order:
    """Leave out edges that others imply: of all that an event waits for on one stream, the last one counts."""
    rank = np.empty(network.events, np.int64)
    rank[events] = np.arange(network.events)
    stream = network.lane[source] * (len(network.streams) + 1) + network.stream[source] + 1
    # What receives is on no stream: it stands for itself.
    stream = np.where(network.stream[source] < 0, -1 - source, stream)
    before, after = network.event[source], network.event[target]
    # Of an order and a reason to come after the same node, the reason is told.
    order = np.lexsort((reason, -rank[before], stream, after))
    source, target, reason, stream = source[order], target[order], reason[order], stream[order]
    before, after = before[order], after[order]
    fresh = np.ones(len(order), bool)
    fresh[1:] = (after[1:] != after[:-1]) | (stream[1:] != stream[:-1])
    kept = np.flatnonzero(fresh)
    starts = np.searchsorted(after[kept], np.arange(network.events + 1))
    return Order(network, events, source[kept], target[kept], reason[kept], starts, before[kept])
