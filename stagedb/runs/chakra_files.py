"""Chakra's execution traces as a run: their nodes when their dependencies and durations allow them to run.

Such traces have durations and dependencies, and no starts. All ranks of a set run together, as in a simulator: a rank
runs one node of a processor, one of a device and one communication at a time, the smallest id first, and a collective
begins when all its members have come. So times of such a run are those of a replay, and not those of clocks.

A set in which no node has a duration runs in the same way, each node as long as the others: that gives an order, and
the run has no times.
"""

import gzip
import heapq
import io
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import rustworkx

from stagedb.files import open_regular, path_text, read_bytes
from stagedb.mentions import Word, call
from stagedb.runs.event_stream import TraceFileError
from stagedb.runs.kernel_names import communication_kind
from stagedb.runs.rank_trace import (
    CATEGORIES,
    HOST,
    NONE,
    PHASES,
    UNKNOWN,
    DeviceOps,
    RankTrace,
    RecordedCollective,
    RecordedOrder,
)
from stagedb.traces import chakra_pb2 as pb
from stagedb.traces.encoding import COMM_TYPES, op_name
from stagedb.traces.set_validation import groups_file
from stagedb.traces.trace_reading import ATTRIBUTE_FIELDS, TraceError, parse_trace
from stagedb.traces.trace_rules import GAP_KIND, HOST_KIND, TRANSFER_KIND, group_of

LARGEST = 384 << 20
"""Bytes of a rank's trace, decompressed."""

_HEAD = 1 << 16
_RANK = re.compile(r"(?P<set>.+)\.(?P<rank>0|[1-9][0-9]{0,8})\.(?:et|json)(?:\.gz)?")
_KINDS = {number: kind for kind, number in COMM_TYPES.items()}
_COMMUNICATES = (pb.COMM_COLL_NODE, pb.COMM_SEND_NODE, pb.COMM_RECV_NODE)


def is_chakra(path: Path) -> bool:
    """Whether a file is a trace of Chakra, binary or as JSON, by its name or by how it begins. Raises OSError."""
    if path.name.removesuffix(".gz").endswith(".et"):
        return True
    with open_regular(path) as file:
        begin = file.read(_HEAD)
    if begin[:2] == b"\x1f\x8b":
        try:
            begin = gzip.GzipFile(fileobj=io.BytesIO(begin)).read1(_HEAD)
        except (OSError, EOFError):
            return False
    return b'"workload_graph"' in begin


def read_chakra(files: Mapping[str, Path]) -> list[RankTrace]:
    """The ranks of a set. files: by the digest of each. Raises TraceFileError for one that is no such trace."""
    nodes = [_read(path) for path in files.values()]
    timed = any(ns for each in nodes for ns in each.ns)
    if not timed:
        nodes = [replace(each, ns=[1] * len(each.ns)) for each in nodes]
    numbers = _numbers(list(files.values()))
    ranks = dict(zip(numbers, nodes, strict=True))
    schedule = _Schedule(ranks, _groups(list(files.values())))
    schedule.run()
    found = []
    for digest, path, number in zip(files, files.values(), numbers, strict=True):
        trace = _trace(digest, number, ranks[number], schedule, timed)
        if trace is None:
            raise TraceFileError(
                f"the trace {path_text(path)} has no node with a duration, and others of its set have some: import a "
                f"trace that was converted from a profiler's, or one of {call('export')} with "
                f"{Word('durations_in_traces', True)}, or leave the durations of all out"
                if timed
                else f"the trace {path_text(path)} has no node"
            )
        found.append(trace)
    return found


def _numbers(paths: Sequence[Path]) -> list[int]:
    """The rank of each file, from its name; where one has none, their places."""
    matches = [_RANK.fullmatch(path.name) for path in paths]
    numbers = [int(match["rank"]) for match in matches if match is not None]
    return numbers if len({*numbers}) == len(paths) else list(range(len(paths)))


def _groups(paths: Sequence[Path]) -> dict[int, list[int]]:
    """The communicator groups, from the file next to the traces; empty without one."""
    for path in paths:
        match = _RANK.fullmatch(path.name)
        if match is not None:
            return groups_file(path.with_name(f"{match['set']}.json"))
    return {}


@dataclass
class _Nodes:
    """The nodes of a rank by place. ns: durations."""

    ids: list[int]
    names: list[str]
    types: list[int]
    deps: list[tuple[int, ...]]
    ns: list[int]
    attributes: Mapping[str, list[Any]]

    @cached_property
    def waits(self) -> list[set[int]]:
        """The places of the nodes that each waits for: those of its dependencies that it can wait for."""
        place = {id: at for at, id in enumerate(self.ids)}
        # A converter leaves out what took no time, and its dependents name it all the same. Some name themselves.
        found = [{place[dep] for dep in {*deps} & place.keys()} - {at} for at, deps in enumerate(self.deps)]
        graph = rustworkx.PyDiGraph()
        graph.add_nodes_from(range(len(found)))
        graph.add_edges_from_no_data([(dep, at) for at, deps in enumerate(found) for dep in deps])
        for cycle in rustworkx.strongly_connected_components(graph):
            for at in cycle if len(cycle) > 1 else ():
                # Where nodes wait for each other, the one with the smaller id was issued first.
                found[at] -= {dep for dep in found[at] if dep in set(cycle) and self.ids[dep] > self.ids[at]}
        return found

    @property
    def left_out(self) -> tuple[str, ...]:
        """Dependencies that count for nothing, as sentences."""
        own = sum(id in deps for id, deps in zip(self.ids, self.deps, strict=True))
        known = {*self.ids}
        absent = sum(len({*deps} - known) for deps in self.deps)
        every = sum(len({*deps}) for deps in self.deps)
        mutual = every - own - absent - sum(map(len, self.waits))
        reasons = {"nodes on themselves": own, "nodes that are not in the file": absent, "cycles of nodes": mutual}
        return tuple(f"{count:,} dependencies: {reason}" for reason, count in reasons.items() if count)

    def is_host(self, place: int) -> bool:
        return bool(self.attributes["is_cpu_op"][place])

    def value(self, place: int, name: str) -> Any:
        return self.attributes[name][place]


def _read(path: Path) -> _Nodes:
    data = read_bytes(path, "trace", LARGEST)
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(LARGEST)
        if data.lstrip()[:1] == b"{":
            return _from_json(path, data)
        found = parse_trace(path, data)
    except (TraceError, OSError, EOFError) as error:
        raise TraceFileError(f"the trace {path_text(path)} cannot be imported: {error}") from None
    exact = found.attributes["duration_ns"]
    ns = [micros * 1000 if own is None else own for own, micros in zip(exact, found.micros, strict=True)]
    deps = [(*data, *ctrl) for data, ctrl in zip(found.data_deps, found.ctrl_deps, strict=True)]
    return _Nodes(found.ids, found.names, found.types, deps, ns, found.attributes)


class _JsonNode(msgspec.Struct):
    """A node as JSON: with the keys of Chakra's feeder, of which writers use several forms."""

    Id: int
    Name: str = ""
    NodeType: int = 0
    ctrl_deps: list[int] = []
    also_ctrl_deps: list[int] = msgspec.field(default_factory=list, name="ctrlDeps")
    data_deps: list[int] = []
    also_data_deps: list[int] = msgspec.field(default_factory=list, name="dataDeps")
    runtime: int = 0
    is_cpu_op: bool | None = None
    comm_type: int | None = None
    comm_size: int | None = None
    comm_src: int | None = None
    comm_dst: int | None = None
    comm_tag: int | None = None
    pg_name: str | None = None
    kind: str | None = None
    phase: str | None = None
    axis: str | None = None
    dtype: str | None = None
    duration_ns: int | None = None


class _JsonTrace(msgspec.Struct):
    workload_graph: list[_JsonNode]


def _from_json(path: Path, data: bytes) -> _Nodes:
    try:
        nodes = msgspec.json.decode(data, type=_JsonTrace).workload_graph
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TraceFileError(f"the trace {path_text(path)} cannot be imported: {error}") from None
    known = {name: [getattr(node, name, None) for node in nodes] for name in ATTRIBUTE_FIELDS}
    return _Nodes(
        [node.Id for node in nodes],
        [node.Name for node in nodes],
        [node.NodeType for node in nodes],
        [(*node.data_deps, *node.also_data_deps, *node.ctrl_deps, *node.also_ctrl_deps) for node in nodes],
        [node.runtime * 1000 if node.duration_ns is None else node.duration_ns for node in nodes],
        known,
    )


@dataclass
class _RankState:
    """A rank while it runs. waiting: dependencies of each node that have not ended. slots: ready nodes by processor."""

    nodes: _Nodes
    waiting: list[int]
    children: list[list[int]]
    ready: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    busy: set[str] = field(default_factory=set)
    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, nodes: _Nodes) -> "_RankState":
        children: list[list[int]] = [[] for _ in nodes.ids]
        waiting = [0] * len(nodes.ids)
        for at, deps in enumerate(nodes.waits):
            waiting[at] = len(deps)
            for dep in deps:
                children[dep].append(at)
        return cls(nodes, waiting, children, start=[NONE] * len(waiting), end=[NONE] * len(waiting))

    def slot(self, at: int) -> str:
        if self.nodes.is_host(at):
            return HOST
        return "communication" if self.nodes.types[at] in _COMMUNICATES else "compute"


class _Schedule:
    """All ranks together. groups: members of each communicator group."""

    def __init__(self, ranks: Mapping[int, _Nodes], groups: Mapping[int, Sequence[int]]) -> None:
        self.groups = groups
        self.ranks = {rank: _RankState.of(nodes) for rank, nodes in ranks.items()}
        self.events: list[tuple[int, int, int]] = []
        self.calls: dict[tuple[tuple[int, ...], int], int] = defaultdict(int)
        self.arrived: dict[tuple[tuple[int, ...], int], list[tuple[int, int]]] = defaultdict(list)
        self.sent: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        self.posted: dict[tuple[int, int, int], list[int]] = defaultdict(list)

    def run(self) -> None:
        """Give each node its start and its end. Raises TraceFileError if some never run."""
        for rank, state in self.ranks.items():
            for at, count in enumerate(state.waiting):
                if not count:
                    self._ready(rank, at, 0)
            self._issue(rank, 0)
        while self.events:
            now, rank, at = heapq.heappop(self.events)
            self._end(rank, at, now)
            self._issue(rank, now)
        for rank, state in self.ranks.items():
            left = sum(each == NONE for each in state.end)
            if left:
                raise TraceFileError(
                    f"{left:,} nodes of rank {rank} wait for each other, or for a rank that does not come: "
                    f"{call('validate', 'DIR')} names them"
                )

    def _members(self, rank: int, at: int) -> Sequence[int]:
        """The ranks that a collective waits for: its group, if all of it was imported; else its own."""
        group = group_of(self.ranks[rank].nodes.value(at, "pg_name"))
        members = list(self.ranks) if group == 0 else self.groups.get(group or -1, ())
        return members if rank in members and all(each in self.ranks for each in members) else (rank,)

    def _ready(self, rank: int, at: int, now: int) -> None:
        state = self.ranks[rank]
        if state.nodes.types[at] == pb.COMM_RECV_NODE and not state.nodes.is_host(at):
            source = state.nodes.value(at, "comm_src")
            state.start[at] = now
            if source in self.ranks:
                envelope = source, rank, state.nodes.value(at, "comm_tag") or 0
                self.posted[envelope].append(at)
                self._deliver(envelope, now)
            else:
                heapq.heappush(self.events, (now + state.nodes.ns[at], rank, at))
            return
        heapq.heappush(state.ready[state.slot(at)], (state.nodes.ids[at], at))

    def _issue(self, rank: int, now: int) -> None:
        """Begin what has a free slot."""
        state = self.ranks[rank]
        for slot, ready in state.ready.items():
            if ready and slot not in state.busy:
                _, at = heapq.heappop(ready)
                state.busy.add(slot)
                state.start[at] = now
                if state.nodes.types[at] == pb.COMM_COLL_NODE and slot != HOST:
                    self._join(rank, at, now)
                else:
                    heapq.heappush(self.events, (now + state.nodes.ns[at], rank, at))

    def _join(self, rank: int, at: int, now: int) -> None:
        members = self._members(rank, at)
        group = tuple(members)
        call = group, self.calls[group, rank]
        self.calls[group, rank] += 1
        here = self.arrived[call]
        here.append((rank, at))
        if len(here) == len(members):
            took = max(self.ranks[each].nodes.ns[its] for each, its in here)
            for each, its in here:
                heapq.heappush(self.events, (now + took, each, its))

    def _deliver(self, envelope: tuple[int, int, int], now: int) -> None:
        while self.sent[envelope] and self.posted[envelope]:
            self.sent[envelope].pop(0)
            heapq.heappush(self.events, (now, envelope[1], self.posted[envelope].pop(0)))

    def _end(self, rank: int, at: int, now: int) -> None:
        state = self.ranks[rank]
        state.end[at] = now
        if state.nodes.types[at] != pb.COMM_RECV_NODE or state.nodes.is_host(at):
            state.busy.discard(state.slot(at))
        if state.nodes.types[at] == pb.COMM_SEND_NODE and not state.nodes.is_host(at):
            envelope = rank, state.nodes.value(at, "comm_dst"), state.nodes.value(at, "comm_tag") or 0
            self.sent[envelope].append(now)
            self._deliver(envelope, now)
        for child in state.children[at]:
            state.waiting[child] -= 1
            if not state.waiting[child]:
                self._ready(rank, child, now)


def _ops_of(nodes: _Nodes, state: _RankState, timed: bool) -> list[int]:
    """The nodes of a device that took time, or those of its processor if it has no other; without times all nodes."""
    every = [*range(len(nodes.ids))]
    if timed:
        took = [at for at in every if state.end[at] > state.start[at] and _is_op(nodes, at)]
        every = [at for at in took if not nodes.is_host(at)] or took
    return sorted(every, key=lambda at: (state.start[at], state.end[at], 0 if timed else nodes.ids[at]))


def _trace(digest: str, rank: int, nodes: _Nodes, schedule: _Schedule, timed: bool) -> RankTrace | None:
    """What a rank ran; None for nothing. timed: whether nodes have durations."""
    state = schedule.ranks[rank]
    chosen = _ops_of(nodes, state, timed)
    if not chosen:
        return None
    names: dict[str, int] = {}
    streams: dict[str, int] = {}
    collectives: dict[RecordedCollective, int] = {}
    place = {id: at for at, id in enumerate(nodes.ids)}
    columns: dict[str, list[int]] = {name: [] for name in ("start", "end", "stream", "name", "category", "collective",
                                                           "launcher", "phase")}  # fmt: skip
    for at in chosen:
        communicates = _collective(nodes, at, schedule)
        launcher = _launcher(nodes, at, place)
        phase = nodes.value(at, "phase")
        row = {
            "start": state.start[at],
            "end": state.end[at],
            "stream": streams.setdefault(state.slot(at), len(streams)),
            "name": names.setdefault(op_name(nodes.names[at], nodes.types[at]), len(names)),
            "category": CATEGORIES.index(HOST) if nodes.is_host(at) else 0,
            "collective": NONE if communicates is None else collectives.setdefault(communicates, len(collectives)),
            "launcher": NONE if launcher is None else names.setdefault(launcher, len(names)),
            "phase": PHASES.index(phase) if phase in PHASES else UNKNOWN,
        }
        for name, value in row.items():
            columns[name].append(value)
    arrays = {name: np.array(values, np.int64) for name, values in columns.items()}
    none = np.full(len(chosen), NONE, np.int64)
    ops = DeviceOps(
        **arrays,
        bytes=none,
        launched=none,
        synchronised=none,
        annotation=none,
        step=none,
        shapes=none,
        module=none,
        operator=none,
    )
    return RankTrace(
        rank, len(schedule.ranks), digest, "chakra", (), tuple(streams), tuple(names), ops, tuple(collectives), (),
        {"node": len(nodes.ids)}, nodes.left_out, order=None if timed else _order(nodes, chosen, columns["launcher"]),
    )  # fmt: skip


def _order(nodes: _Nodes, chosen: Sequence[int], launchers: Sequence[int]) -> RecordedOrder:
    """What nodes without durations have besides their order.

    chosen: all nodes, in order. launchers: the place of the name of the launcher of each.
    """
    place = {at: number for number, at in enumerate(chosen)}
    waits = ((number, place[dep]) for number, at in enumerate(chosen) for dep in sorted(nodes.waits[at]))
    return RecordedOrder(("",) * len(chosen), tuple(launchers), tuple(sorted(waits)))


def _is_op(nodes: _Nodes, at: int) -> bool:
    return nodes.value(at, "kind") not in (HOST_KIND, GAP_KIND, TRANSFER_KIND)


def _launcher(nodes: _Nodes, at: int, place: Mapping[int, int]) -> str | None:
    """What a node does, in the words of its writer: its kind, or the operator of the processor that it depends on."""
    if nodes.value(at, "kind"):
        return str(nodes.value(at, "kind"))
    hosts = (place[dep] for dep in nodes.deps[at] if dep in place and nodes.is_host(place[dep]))
    found = next(hosts, None)
    return None if found is None else re.sub(r"\(\d+\)$", "", nodes.names[found])


def _collective(nodes: _Nodes, at: int, schedule: _Schedule) -> RecordedCollective | None:
    """What a node communicates. Bytes are elements of one byte, since traces have no other size."""
    type_ = nodes.types[at]
    if type_ not in _COMMUNICATES:
        return None
    size, group = nodes.value(at, "comm_size"), nodes.value(at, "pg_name")
    members = tuple(schedule.groups.get(group_of(group) or -1, ()))
    more: dict[str, Any] = {"dtype": "Byte" if size else "", "sent": size, "received": size}
    more |= {"group": group or "", "description": nodes.value(at, "axis") or ""}
    if type_ == pb.COMM_SEND_NODE:
        return RecordedCollective("send", peer=nodes.value(at, "comm_dst"), **more)
    if type_ == pb.COMM_RECV_NODE:
        return RecordedCollective("recv", peer=nodes.value(at, "comm_src"), **more)
    kind = _KINDS.get(nodes.value(at, "comm_type")) or communication_kind(nodes.names[at]) or "collective"
    return RecordedCollective(kind, ranks=members, size=len(members) or None, **more)
