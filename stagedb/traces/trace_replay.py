"""Traces run in a simulator's order, without a clock: checks that every node of every rank ends.

The ready node with the smallest id of a rank goes first. There is one slot for compute, one for collectives and sends
(a collective that waits for its members holds it), and any number of receives. Collectives are matched by a counter for
each group. Receives are matched with the sends of the same source, destination and tag, k-th to k-th.
"""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stagedb.traces import chakra_pb2 as pb
from stagedb.traces.trace_faults import Fault
from stagedb.traces.trace_reading import TraceColumns
from stagedb.traces.trace_rules import Envelope, Groups, group_of


@dataclass
class _Rank:
    """One rank while it runs. Nodes are indexes into its trace."""

    trace: TraceColumns
    waiting: list[int]  # the number of dependencies of each node that have not ended
    children: list[list[int]]
    compute: list[tuple[int, int]] = field(default_factory=list)  # (id, node): ids are priorities
    communication: list[tuple[int, int]] = field(default_factory=list)
    holding: int | None = None  # the collective in the communication slot
    calls: Counter[int] = field(default_factory=Counter)
    ended: int = 0


def _start(trace: TraceColumns) -> _Rank:
    index_of = {node: index for index, node in enumerate(trace.ids)}
    children: list[list[int]] = [[] for _ in trace.ids]
    waiting = [0] * len(trace.ids)
    for index in range(len(trace.ids)):
        for dep in {*trace.data_deps[index], *trace.ctrl_deps[index]}:
            waiting[index] += 1
            if dep in index_of:
                children[index_of[dep]].append(index)
    return _Rank(trace, waiting, children)


class Replay:
    """A replay of all ranks' traces in a simulator's order, without a clock, from the first ready node to the last."""

    def __init__(self, traces: Mapping[int, TraceColumns], groups: Groups) -> None:
        self.groups = groups
        self.ranks = {rank: _start(trace) for rank, trace in traces.items()}
        self.arrived: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.sent: Counter[Envelope] = Counter()
        self.posted: dict[Envelope, deque[int]] = defaultdict(deque)
        self.awake = deque(self.ranks)

    def run(self) -> Iterator[Fault]:
        """Run until nothing moves; a fault for each rank that has not ended."""
        for rank, state in self.ranks.items():
            for index, count in enumerate(state.waiting):
                if count == 0:
                    self._ready(rank, index)
        while self.awake:
            self._advance(self.awake.popleft())
        for rank, state in self.ranks.items():
            if state.ended < len(state.trace):
                yield self._stuck(rank, state)

    def _ready(self, rank: int, index: int) -> None:
        state = self.ranks[rank]
        kind = state.trace.types[index]
        if kind == pb.COMM_RECV_NODE:
            envelope = (state.trace.attributes["comm_src"][index], rank, state.trace.attributes["comm_tag"][index])
            self.posted[envelope].append(index)
            self._deliver(envelope)
            return
        slot = state.compute if kind == pb.COMP_NODE else state.communication
        heapq.heappush(slot, (state.trace.ids[index], index))

    def _advance(self, rank: int) -> None:
        state = self.ranks[rank]
        while True:
            if state.compute:
                self._end(rank, heapq.heappop(state.compute)[1])
            elif state.communication and state.holding is None:
                self._issue(rank, heapq.heappop(state.communication)[1])
            else:
                return

    def _issue(self, rank: int, index: int) -> None:
        state = self.ranks[rank]
        if state.trace.types[index] != pb.COMM_COLL_NODE:
            envelope = (rank, state.trace.attributes["comm_dst"][index], state.trace.attributes["comm_tag"][index])
            self._end(rank, index)
            self.sent[envelope] += 1
            self._deliver(envelope)
            return
        state.holding = index
        group = group_of(state.trace.attributes["pg_name"][index]) or 0
        call = (group, state.calls[group])
        state.calls[group] += 1
        self.arrived[call].append(rank)
        if len(self.arrived[call]) == len(self._members(group)):
            for member in self.arrived.pop(call):
                held = self.ranks[member].holding
                self.ranks[member].holding = None
                if held is not None:
                    self._end(member, held)
                self.awake.append(member)

    def _members(self, group: int) -> Sequence[int]:
        return self.groups.get(group, ()) if group else list(self.ranks)

    def _deliver(self, envelope: Envelope) -> None:
        rank = envelope[1]
        while self.sent[envelope] and self.posted[envelope]:
            self.sent[envelope] -= 1
            self._end(rank, self.posted[envelope].popleft())
            self.awake.append(rank)

    def _end(self, rank: int, index: int) -> None:
        state = self.ranks[rank]
        state.ended += 1
        for child in state.children[index]:
            state.waiting[child] -= 1
            if state.waiting[child] == 0:
                self._ready(rank, child)

    def _stuck(self, rank: int, state: _Rank) -> Fault:
        trace = state.trace
        left = len(trace) - state.ended
        if state.holding is not None:
            index = state.holding
            group = group_of(trace.attributes["pg_name"][index]) or 0
            arrived = self.arrived[group, state.calls[group] - 1]
            missing = [member for member in self._members(group) if member not in arrived]
            reason = f"collective {state.calls[group]} of group {group} waits for rank {missing[0] if missing else '?'}"
        else:
            posted = {i: e for e, waiting in self.posted.items() if e[1] == rank for i in waiting}
            if posted:
                index = min(posted)
                reason = f"the message from rank {posted[index][0]} with tag {posted[index][2]} never comes"
            else:
                index = next(i for i, count in enumerate(state.waiting) if count > 0)
                reason = "its dependencies never end"
        return Fault(rank, trace.ids[index], trace.names[index], "replay", f"{reason}; {left} nodes do not run")


def replay(traces: Mapping[int, TraceColumns], groups: Groups) -> Iterator[Fault]:
    """A fault for each rank whose trace does not end. `traces` holds every rank of the world."""
    yield from Replay(traces, groups).run()
