"""A trace set run with a clock, rank by rank and node by node, as simulators run it.

It knows nothing of classes, lanes or tasks. The smallest id of a rank's ready nodes goes first, in one slot for compute
and one for collectives and sends; receives wait outside these slots. At every moment first all ends that ends then,
then communication begins until nothing moves any more, then compute slots take what is ready; with `as_issued` a
compute slot waits for its smallest id. Communication that `blocks` has a turn among these: it begins when all that was
issued before it has ended, and what was issued after it waits for its end.
"""

import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

from stagedb.traces import chakra_pb2 as pb
from stagedb.traces import read_trace
from stagedb.traces.trace_reading import TraceColumns

Cost = Callable[[str], int]
"""Nanoseconds by a node's name, without its type."""

Blocks = Callable[[str], bool]
"""Whether a rank waits for the communication of such a name."""


class Rank:
    def __init__(self, trace: TraceColumns, blocks: Blocks) -> None:
        self.trace = trace
        self.waits: dict[int, int] = {}
        self.children: dict[int, list[int]] = defaultdict(list)
        for node, data, ctrl in zip(trace.ids, trace.data_deps, trace.ctrl_deps, strict=True):
            deps = {*data, *ctrl}
            self.waits[node] = len(deps)
            for dep in deps:
                self.children[dep].append(node)
        self.row = {node: row for row, node in enumerate(trace.ids)}
        self.compute: list[int] = []
        self.communication: list[int] = []
        self.computing = False
        self.communicating = False
        self.calls: Counter[int] = Counter()
        self.started: dict[int, int] = {}
        found = zip(trace.ids, trace.types, trace.names, strict=True)
        self.turns = {
            node
            for node, type_, name in found
            if type_ == pb.COMP_NODE or (type_ != pb.COMM_RECV_NODE and blocks(name.rpartition(" ")[0]))
        }
        self.issued = sorted(self.turns, reverse=True)

    def has_turn(self, node: int) -> bool:
        """Whether it is the first issued of those that take turns and have not ended, or takes none."""
        return node not in self.turns or node == self.issued[-1]

    def value(self, node: int, attribute: str) -> int:
        return int(self.trace.attributes[attribute][self.row[node]])


class Traces:
    """The traces and groups of a directory, read once for many runs. name: the model's."""

    def __init__(self, directory: Path, name: str) -> None:
        self.groups = json.loads((directory / f"{name}.json").read_text())
        world = len(list(directory.glob(f"{name}.*.et")))
        self.ranks = [read_trace(directory / f"{name}.{rank}.et") for rank in range(world)]


class Run:
    def __init__(
        self, traces: Traces, cost: Cost, as_issued: bool = False, blocks: Blocks = lambda name: False
    ) -> None:
        self.cost, self.as_issued = cost, as_issued
        self.groups, self.world = traces.groups, len(traces.ranks)
        self.ranks = [Rank(trace, blocks) for trace in traces.ranks]
        self.ends: list[tuple[int, int, int]] = []
        self.now = 0
        self.arrived: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        self.there: Counter[tuple[int, int, int]] = Counter()
        self.posted: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        self.moving = True

    def run(self) -> int:
        """The time at which the last node of the last rank ends."""
        for number, rank in enumerate(self.ranks):
            for node, waits in rank.waits.items():
                if not waits:
                    self.ready(number, node)
        while True:
            self.moving = True
            while self.moving:
                self.moving = False
                for number, rank in enumerate(self.ranks):
                    if (
                        rank.communication
                        and not rank.communicating
                        and (not self.as_issued or rank.has_turn(rank.communication[0]))
                    ):
                        self.moving = True
                        self.communicate(number, heapq.heappop(rank.communication))
            for number, rank in enumerate(self.ranks):
                if rank.compute and not rank.computing and (not self.as_issued or rank.has_turn(rank.compute[0])):
                    node = heapq.heappop(rank.compute)
                    rank.computing = True
                    self.begin(number, node, self.cost_of(number, node))
            if not self.ends:
                break
            self.now = self.ends[0][0]
            while self.ends and self.ends[0][0] == self.now:
                _, number, node = heapq.heappop(self.ends)
                self.end(number, node)
        assert all(len(rank.started) == len(rank.trace) for rank in self.ranks), "a node never ran"
        return self.now

    def cost_of(self, number: int, node: int) -> int:
        trace = self.ranks[number].trace
        return self.cost(trace.names[self.ranks[number].row[node]].rpartition(" ")[0])

    def begin(self, number: int, node: int, took: int) -> None:
        self.ranks[number].started[node] = self.now
        heapq.heappush(self.ends, (self.now + took, number, node))

    def communicate(self, number: int, node: int) -> None:
        rank = self.ranks[number]
        rank.communicating = True
        if rank.trace.types[rank.row[node]] == pb.COMM_SEND_NODE:
            self.begin_communicating(number, node, self.cost_of(number, node))
            return
        group = rank.value(node, "pg_name")
        here = self.arrived[group, rank.calls[group]]
        rank.calls[group] += 1
        here.append((number, node))
        if len(here) == len(self.groups[str(group)]):
            # It ends for all together.
            took = max(self.cost_of(member, its) for member, its in here)
            for member, its in here:
                self.begin_communicating(member, its, took)

    def begin_communicating(self, number: int, node: int, took: int) -> None:
        if took:
            self.begin(number, node, took)
        else:
            self.ranks[number].started[node] = self.now
            self.end(number, node)

    def end(self, number: int, node: int) -> None:
        rank = self.ranks[number]
        type_ = rank.trace.types[rank.row[node]]
        if self.as_issued and node in rank.turns:
            rank.issued.pop()
        if type_ == pb.COMP_NODE:
            rank.computing = False
        elif type_ != pb.COMM_RECV_NODE:
            rank.communicating = False
            self.moving = True
        if type_ == pb.COMM_SEND_NODE:
            message = (number, rank.value(node, "comm_dst"), rank.value(node, "comm_tag"))
            self.there[message] += 1
            self.deliver(message)
        for child in rank.children[node]:
            rank.waits[child] -= 1
            if not rank.waits[child]:
                self.ready(number, child)

    def ready(self, number: int, node: int) -> None:
        rank = self.ranks[number]
        type_ = rank.trace.types[rank.row[node]]
        if type_ == pb.COMM_RECV_NODE:
            message = (rank.value(node, "comm_src"), number, rank.value(node, "comm_tag"))
            heapq.heappush(self.posted[message], node)
            self.deliver(message)
        else:
            heapq.heappush(rank.compute if type_ == pb.COMP_NODE else rank.communication, node)

    def deliver(self, message: tuple[int, int, int]) -> None:
        while self.there[message] and self.posted[message]:
            self.there[message] -= 1
            node = heapq.heappop(self.posted[message])
            self.ranks[message[1]].started[node] = self.now
            self.end(message[1], node)
