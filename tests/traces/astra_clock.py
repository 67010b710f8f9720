"""When each rank of a set finishes in ASTRA-sim with its analytical network without congestion, by its published rules.

Written from the rules alone: it shares nothing with `stagedb.timing`, and reads what the simulator reads. A rank runs
one compute node and one collective or send at a time, the ready node with the smallest id first. Times are in ns.
"""

import heapq
import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from stagedb.traces import chakra_pb2 as pb
from stagedb.traces import read_trace
from stagedb.traces.trace_reading import TraceColumns

Times = npt.NDArray[np.int64]

KINDS = {
    pb.ALL_REDUCE: "all-reduce",
    pb.ALL_GATHER: "all-gather",
    pb.REDUCE_SCATTER: "reduce-scatter",
    pb.ALL_TO_ALL: "all-to-all",
}
LOCAL_DELAY = 10
"""ns of a step's way to memory in a group that is smaller than the world; in the world it is the `endpoint-delay`."""


@dataclass(frozen=True)
class Machine:
    """`system.json` and `network.yml`."""

    system: Mapping[str, Any]
    topology: tuple[str, ...]
    sizes: tuple[int, ...]
    bandwidth: tuple[float, ...]
    latency: tuple[float, ...]

    @classmethod
    def read(cls, directory: Path) -> "Machine":
        network = yaml.safe_load((directory / "network.yml").read_text())
        system = json.loads((directory / "system.json").read_text())
        assert (system["scheduling-policy"], system["active-chunks-per-dimension"]) == ("LIFO", 1)
        assert system["collective-optimization"] == "localBWAware"
        per_ns = tuple(each * (1 << 30) / 1e9 for each in network["bandwidth"])
        return cls(system, tuple(network["topology"]), tuple(network["npus_count"]), per_ns, tuple(network["latency"]))

    @property
    def world(self) -> int:
        return math.prod(self.sizes)

    def implementations(self, kind: str) -> list[str]:
        return list(self.system[f"{kind}-implementation"])

    def message(self, source: int, target: int, size: int) -> int:
        """A message between two ranks takes the innermost dimension on which they differ."""
        for topology, places, bandwidth, latency in zip(
            self.topology, self.sizes, self.bandwidth, self.latency, strict=True
        ):
            apart = abs(source % places - target % places)
            if apart:
                hops = {"Switch": 2, "FullyConnected": 1, "Ring": min(apart, places - apart)}[topology]
                return int(hops * latency + size / bandwidth)
            source, target = source // places, target // places
        raise AssertionError("a message of a rank to itself")

    def compute(self, trace: TraceColumns, index: int) -> int:
        """By the roofline, or by the duration in the trace."""
        if not self.system["roofline-enabled"]:
            return trace.micros[index] * 1000 or 1
        flops, size = trace.attributes["num_ops"][index], trace.attributes["tensor_size"][index]
        rate = min(self.system["local-mem-bw"] * 1e9 * flops / size, self.system["peak-perf"] * 1e12)
        return int(flops / rate * 1e9)

    def reduction(self, size: int) -> int:
        """Two reads and a write of what was received."""
        return 3 * int(size / (self.system["local-mem-bw"] * 1e9) * 1e9)


@dataclass(frozen=True)
class Phase:
    """A part of a collective along rings that do not meet, each a tuple of ranks. final: bytes a rank has after it."""

    kind: str
    implementation: str
    dimension: int
    rings: tuple[tuple[int, ...], ...]
    size: int
    delay: int
    local: bool

    @property
    def members(self) -> int:
        return len(self.rings[0])

    @property
    def final(self) -> int:
        factors = {"all-gather": self.members, "reduce-scatter": 1 / self.members}
        return (
            self.size // self.members if self.kind == "reduce-scatter" else int(self.size * factors.get(self.kind, 1))
        )

    @property
    def message(self) -> int:
        return self.size if self.kind == "all-gather" else self.size // self.members


def run_ring(machine: Machine, phase: Phase, ring: Sequence[int], starts: Times) -> Times:
    """Each member passes on to the next one what it has received, and what it has reduced."""
    n, size = len(ring), phase.message
    link = np.array([machine.message(ring[at - 1], ring[at], size) for at in range(n)], np.int64)
    steps = {"all-reduce": 2 * (n - 1), "all-to-all": n * (n - 1) // 2}.get(phase.kind, n - 1)
    sent = starts + phase.delay
    for step in range(steps):
        received = np.maximum(np.roll(sent, 1) + link, sent)
        reduces = phase.kind == "reduce-scatter" or (phase.kind == "all-reduce" and step < n - 1)
        sent = received + phase.delay + (machine.reduction(size) if reduces else 0)
    return sent


def run_in_turn(machine: Machine, phase: Phase, ring: Sequence[int], starts: Times) -> Times:
    """Each member sends to the next, the one after that, and so on; each message after the one received."""
    assert phase.kind == "all-to-all"
    n, size = len(ring), phase.message
    sent = starts + phase.delay
    for step in range(1, n):
        link = np.array([machine.message(ring[(at - step) % n], ring[at], size) for at in range(n)], np.int64)
        sent = np.maximum(np.roll(sent, step) + link, sent) + phase.delay
    return sent


def run_at_once(machine: Machine, phase: Phase, ring: Sequence[int], starts: Times) -> Times:
    """Each member sends to all others at once."""
    n, size = len(ring), phase.message
    link = np.array([[0 if a == b else machine.message(a, b, size) for a in ring] for b in ring], np.int64)
    others = ~np.eye(n, dtype=bool)
    reduction = machine.reduction(size)
    sent = np.broadcast_to((starts + phase.delay)[None, :], (n, n))
    # Row: receiver. Column: sender.
    received = np.where(others, np.maximum(sent + link, (starts + phase.delay)[:, None]), 0)
    if phase.kind != "all-reduce":
        taken = received + phase.delay + (reduction if phase.kind == "reduce-scatter" else 0)
        ends: Times = np.where(others, taken, 0).max(axis=1)
        return ends
    ready = np.where(others, np.maximum(received + phase.delay + reduction, received.max(axis=1)[:, None]), 0)
    again = np.empty((n, n), np.int64)
    for at in range(n):
        # The sums leave one by one, to the next member first.
        for step, time in enumerate(sorted(ready[at][others[at]].tolist()), 1):
            to = (at + step) % n
            again[to, at] = time + link[to, at]
    np.fill_diagonal(again, 0)
    taken = np.maximum(again, np.where(others, ready, 0)) + phase.delay + (reduction if phase.local else 0)
    last: Times = np.where(others, taken, 0).max(axis=1)
    return last


def run_phase(machine: Machine, phase: Phase, ring: Sequence[int], starts: Times) -> Times:
    word = phase.implementation.removeprefix("one").lower()
    runs = {"ring": run_ring, "direct": run_at_once, "direct1": run_in_turn}[word]
    return runs(machine, phase, ring, starts)


def phases_of(machine: Machine, kind: str, size: int, group: Sequence[int] | None) -> list[Phase]:
    """The parts of one chunk. group: the members in the order of the list; None for all ranks."""
    words, world = machine.implementations(kind), tuple(range(machine.world))
    if group is not None:
        # A group with several implementations becomes one ring.
        word = words[0] if len(words) == 1 else "ring"
        return [Phase(kind, word, 0, (tuple(group),), size, LOCAL_DELAY, True)]
    delay = int(machine.system["endpoint-delay"])
    if words[0].startswith("one"):
        return [Phase(kind, words[0], 0, (world,), size, delay, False)]
    order = [(at, kind) for at in range(len(words))]
    if kind == "all-gather":
        order.reverse()
    if kind == "all-reduce":
        inner = order[:-1]
        order = [(at, "reduce-scatter") for at, _ in inner] + order[-1:] + [(at, "all-gather") for at, _ in inner[::-1]]
    found = []
    for at, part in order:
        found.append(Phase(part, words[at], at, rings_along(machine.sizes, at), size, delay, False))
        size = found[-1].final
    return found


@cache
def rings_along(sizes: tuple[int, ...], dimension: int) -> tuple[tuple[int, ...], ...]:
    """The rows of a dimension, ranks ascending."""
    stride = math.prod(sizes[:dimension])
    rows = defaultdict(list)
    for rank in range(math.prod(sizes)):
        rows[rank % stride, rank // (stride * sizes[dimension])].append(rank)
    return tuple(map(tuple, rows.values()))


def chunks_of(machine: Machine, kind: str, size: int) -> list[int]:
    """The sizes of the chunks of a collective. What remains at the end counts as a whole one."""
    splits = int(machine.system["preferred-dataset-splits"])
    chunk = size // splits
    if kind != "all-gather" and machine.world > chunk:
        chunk = machine.world
        size = chunk * splits
    return [chunk] * -(-size // chunk)


def run_collective(
    machine: Machine, kind: str, size: int, group: Sequence[int] | None, starts: Mapping[int, int]
) -> dict[int, int]:
    """When each member finishes. Chunks wait for each other on a dimension, in the order in which they come."""
    plans = [phases_of(machine, kind, each, group) for each in chunks_of(machine, kind, size)]
    # All chunks have equal rings.
    ring_of = [{rank: ring for ring in phase.rings for rank in ring} for phase in plans[0]]
    waiting: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    busy: set[tuple[int, int]] = set()
    begun: dict[tuple[int, int, tuple[int, ...]], dict[int, int]] = defaultdict(dict)
    events: list[tuple[int, int, int, int, int]] = []
    finish = dict.fromkeys(starts, 0)
    count = 0

    def start(now: int, rank: int, dimension: int) -> None:
        nonlocal count
        queue = waiting[rank, dimension]
        if (rank, dimension) in busy or not queue:
            return
        chunk, step = queue.pop(0)
        busy.add((rank, dimension))
        phase, ring = plans[chunk][step], ring_of[step][rank]
        there = begun[chunk, step, ring]
        there[rank] = now
        if len(there) == len(ring):
            ends = run_phase(machine, phase, ring, np.array([there[each] for each in ring], np.int64))
            for each, end in zip(ring, ends.tolist(), strict=True):
                count += 1
                heapq.heappush(events, (end, count, each, chunk, step))

    arrivals = sorted((now, rank) for rank, now in starts.items())
    for now, rank in arrivals:
        heapq.heappush(events, (now, -1, rank, -1, -1))
    while events:
        now, _, rank, chunk, step = heapq.heappop(events)
        if chunk < 0:
            waiting[rank, plans[0][0].dimension] += [(each, 0) for each in range(len(plans))]
            start(now, rank, plans[0][0].dimension)
            continue
        finish[rank] = max(finish[rank], now)
        dimension = plans[chunk][step].dimension
        busy.discard((rank, dimension))
        if step + 1 < len(plans[chunk]):
            after = plans[chunk][step + 1].dimension
            waiting[rank, after].append((chunk, step + 1))
            start(now, rank, dimension)
            start(now, rank, after)
        else:
            start(now, rank, dimension)
    return finish


@dataclass
class Rank:
    """A rank's nodes, and what it waits for."""

    trace: TraceColumns
    waits: list[int] = field(default_factory=list)
    children: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    ready: set[int] = field(default_factory=set)
    computing: bool = False
    sending: bool = False
    left: int = 0
    finish: int = -1
    computed: int = 0

    def __post_init__(self) -> None:
        at = {node: index for index, node in enumerate(self.trace.ids)}
        for index in range(len(self.trace)):
            deps = {*self.trace.data_deps[index], *self.trace.ctrl_deps[index]}
            self.waits.append(len(deps))
            for dep in deps:
                self.children[at[dep]].append(index)
        self.ready = {index for index, waits in enumerate(self.waits) if not waits}
        self.left = len(self.trace)


class Clock:
    """Runs the traces of a directory on the machine that it describes."""

    def __init__(self, directory: Path) -> None:
        self.machine = Machine.read(directory)
        (groups,) = (
            path
            for path in directory.glob("*.json")
            if path.name not in {"manifest.json", "system.json", "memory.json"}
        )
        self.groups = {int(gid): tuple(ranks) for gid, ranks in json.loads(groups.read_text()).items()}
        files = (directory / f"{groups.stem}.{rank}.et" for rank in range(self.machine.world))
        self.ranks = [Rank(read_trace(path)) for path in files]
        self.events: list[tuple[int, int, Callable[[int], None]]] = []
        self.count = 0
        self.issued: dict[tuple[int, int], int] = defaultdict(int)
        self.joined: dict[tuple[int, int], dict[int, tuple[int, int]]] = defaultdict(dict)
        self.sent: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        self.posted: dict[tuple[int, int, int], list[tuple[int, int, int]]] = defaultdict(list)

    def run(self) -> list[int]:
        """When each rank finishes; -1 for one that never does."""
        for rank in range(len(self.ranks)):
            self._issue(0, rank)
        while self.events:
            now, _, event = heapq.heappop(self.events)
            event(now)
        return [each.finish for each in self.ranks]

    def _at(self, time: int, event: Callable[[int], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (time, self.count, event))

    def _ends(self, time: int, rank: int, index: int) -> None:
        self._at(time, lambda now: self._end(now, rank, index))

    def _end(self, now: int, rank: int, index: int) -> None:
        state = self.ranks[rank]
        kind = state.trace.types[index]
        if kind == pb.COMP_NODE:
            state.computing = False
        elif kind != pb.COMM_RECV_NODE:
            state.sending = False
        for child in state.children[index]:
            state.waits[child] -= 1
            if not state.waits[child]:
                state.ready.add(child)
        state.left -= 1
        if not state.left:
            state.finish = now
        self._issue(now, rank)

    def _issue(self, now: int, rank: int) -> None:
        state = self.ranks[rank]
        for index in sorted(state.ready):
            kind = state.trace.types[index]
            if kind == pb.COMP_NODE:
                if not state.computing:
                    state.computing = True
                    state.ready.discard(index)
                    took = self.machine.compute(state.trace, index)
                    state.computed += took
                    self._ends(now + took, rank, index)
            elif kind == pb.COMM_RECV_NODE:
                state.ready.discard(index)
                self._receive(now, rank, index)
            elif not state.sending:
                state.sending = True
                state.ready.discard(index)
                (self._collective if kind == pb.COMM_COLL_NODE else self._send)(now, rank, index)

    def _collective(self, now: int, rank: int, index: int) -> None:
        attributes = self.ranks[rank].trace.attributes
        group = int(attributes["pg_name"][index] or 0)
        members = self.groups[group] if group else tuple(range(self.machine.world))
        number = self.issued[rank, group]
        self.issued[rank, group] += 1
        joined = self.joined[group, number]
        joined[rank] = now, index
        if len(joined) < len(members):
            return
        kind, size = KINDS[attributes["comm_type"][index]], attributes["comm_size"][index]
        ring = None if len(members) == self.machine.world else members
        starts = {each: time for each, (time, _) in joined.items()}
        for each, finish in run_collective(self.machine, kind, size, ring, starts).items():
            self._ends(finish, each, joined[each][1])

    def _send(self, now: int, rank: int, index: int) -> None:
        attributes = self.ranks[rank].trace.attributes
        target, tag = attributes["comm_dst"][index], attributes["comm_tag"][index]
        there = now + self.machine.message(rank, target, attributes["comm_size"][index])
        self._ends(there, rank, index)
        key = rank, target, tag
        if self.posted[key]:
            posted, by, node = self.posted[key].pop(0)
            self._ends(max(there, posted), by, node)
        else:
            self.sent[key].append(there)

    def _receive(self, now: int, rank: int, index: int) -> None:
        attributes = self.ranks[rank].trace.attributes
        key = attributes["comm_src"][index], rank, attributes["comm_tag"][index]
        if self.sent[key]:
            self._ends(max(self.sent[key].pop(0), now), rank, index)
        else:
            self.posted[key].append((now, rank, index))


def finishes(directory: Path) -> list[int]:
    """When each rank of a set finishes; -1 for one that never does."""
    return Clock(directory).run()
