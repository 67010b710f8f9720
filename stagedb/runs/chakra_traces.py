"""A run as Chakra traces, with the durations that were measured, in the order in which its ranks ran.

Every op is a node. What the host did before it could launch an op (`host`), what no dependency explains (`gap`), and
what was left of a message when its receiver came (`transfer`) are nodes of these kinds. Waiting is in no node: a
simulator finds it again. A collective takes as long as it did once its last member had begun.
"""

import importlib.metadata
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np
from google.protobuf.proto import serialize_length_prefixed

from stagedb.collectives import KINDS
from stagedb.runs.clocks import MESSAGES
from stagedb.runs.rank_trace import NONE
from stagedb.runs.stored_run import Dependencies, RunOpFacts, StoredCollective, StoredRun
from stagedb.systems.system import System
from stagedb.traces import chakra_pb2 as pb
from stagedb.traces.encoded_class import EncodedClass, RankBytes
from stagedb.traces.encoding import COMM_TYPES, NODE_TYPES, VERSION, node_name, whole_micros
from stagedb.traces.simulators import SimulatedJob, Traffic
from stagedb.traces.trace_rules import GAP_KIND, HOST_KIND, TRANSFER_KIND
from stagedb.traces.trace_set import ClassTraces, TraceSet

_COMPUTE, _COLLECTIVE, _SEND, _RECV = range(4)
"""Places in `NODE_TYPES`."""


@dataclass
class _Node:
    """A node before it has its id. key: its start, then its end. waits: other nodes of the rank."""

    key: tuple[int, int]
    name: str
    type: int
    ns: int
    kind: str
    phase: str = ""
    waits: "list[_Node]" = field(default_factory=list)
    by_host: bool = False
    call: "_Call | None" = None
    axis: str | None = None
    dtype: str | None = None
    id: int = 0


@dataclass(frozen=True)
class _Call:
    """What a communicating node names: its bytes, and its group, or the peer and the tag of a message."""

    size: int
    group: int = 0
    peer: int = 0
    tag: int = 0


@dataclass(frozen=True)
class RunTraces:
    """The traces of a run. left_out: what of it no simulator can run as it was, as sentences."""

    traces: TraceSet
    left_out: tuple[str, ...]


def run_traces(run: StoredRun, system: System) -> RunTraces:
    """The traces of the recorded ranks, which are numbered from 0 on. system: that of a simulator's inputs."""
    writer = _RunWriter(run)
    ranks = [writer.rank(rank) for rank in run.timed]
    name = "".join(each if each.isalnum() or each in "-._" else "_" for each in run.name)[:100]
    world = len(ranks)
    groups = {str(number): list(members) for (_, members), number in writer.groups.items()}
    job = SimulatedJob(name, world, (world,), system, True, groups, tuple(writer.traffic()))
    facts = {
        "what": f"Chakra execution traces of a run that was recorded, one a rank: {name}.<rank>.et",
        "name": name,
        "run": run.id,
        "recorded": list(run.timed),
        "world": world,
        "granularity": "op",
        "versions": {"stagedb": importlib.metadata.version("stagedb"), "chakra": VERSION},
        "system": system.to_dict(),
        "traffic": [each.to_dict() for each in job.traffic],
    }
    classes = [
        _class(place, rank, _encoded(nodes, run, rank, place), len(nodes))
        for place, (rank, nodes) in enumerate(zip(run.timed, ranks, strict=True))
    ]
    return RunTraces(TraceSet(facts, groups, job, tuple(classes)), tuple(writer.left_out()))


class _RunWriter:
    """Nodes of a run. groups: number of each group, by its axis and its members."""

    def __init__(self, run: StoredRun) -> None:
        self.run = run
        self.number = {rank: place for place, rank in enumerate(run.timed)}
        self.groups: dict[tuple[str, tuple[int, ...]], int] = {}
        self.calls: dict[tuple[int, int], _Call] = {}
        self.arrived: dict[tuple[int, int], int] = {}
        self.alone: dict[str, list[int]] = {}
        self.runs: dict[tuple[str, int, int], int] = {}
        tags: dict[tuple[int, int], int] = {}
        for each in run.collectives:
            self._add(each, tags)

    def _add(self, found: StoredCollective, tags: dict[tuple[int, int], int]) -> None:
        """Number the group of a collective, or the message."""
        kind, members = found.joint.collective.kind, found.joint.members
        types = {rank: self._fact(rank, place).type for rank, place in members.items()}
        size = max(self._fact(rank, place).message or 0 for rank, place in members.items())
        if kind in MESSAGES and sorted(types.values()) == sorted(MESSAGES) and size:
            source, target = sorted(members, key=lambda rank: types[rank] != MESSAGES[0])
            tags[source, target] = tag = tags.get((source, target), 0) + 1
            ends = {source: target, target: source}
            for rank, place in members.items():
                self.calls[rank, place] = _Call(size, peer=self.number[ends[rank]], tag=tag)
            sent = members[source]
            there = int(self.run.timed[source].start[sent] + self.run.dependencies[source].work[sent])
            self.arrived[target, members[target]] = there
        elif kind in KINDS and len(members) > 1 and size >= KINDS[kind].smallest:
            key = found.axis or "", tuple(sorted(self.number[rank] for rank in members))
            group = self.groups.setdefault(key, len(self.groups) + 1)
            self.runs[kind, size, group] = self.runs.get((kind, size, group), 0) + 1
            for rank, place in members.items():
                self.calls[rank, place] = _Call(size, group)
        else:
            known = kind in KINDS or kind in MESSAGES
            reason = "of a kind that simulators do not run" if not known else "of unknown size"
            if known and size:
                reason = "whose other ranks were not recorded"
            self.alone.setdefault(reason, []).append(len(members))

    def _fact(self, rank: int, place: int) -> RunOpFacts:
        return self.run.lane_of[rank].ops[place]

    def left_out(self) -> list[str]:
        """What is a compute node in the traces, though it communicates."""
        return [
            f"{len(members):,} collectives and messages {reason} are compute nodes with their durations"
            for reason, members in self.alone.items()
        ]

    def traffic(self) -> list[Traffic]:
        """What the groups run."""
        return [Traffic(kind, size, count, group=str(group)) for (kind, size, group), count in self.runs.items()]

    def rank(self, rank: int) -> list[_Node]:
        """The nodes of a rank in an order in which each is after what it waits for, with their ids."""
        found = self.run.dependencies[rank]
        facts = self.run.lane_of[rank].ops
        nodes = [self._node(rank, place, fact, found) for place, fact in enumerate(facts)]
        transfers = {place: node for place, each in enumerate(nodes) if (node := self._transfer(rank, place, each))}
        # A node that waits for a receive waits for the end of its transfer.
        ends = [transfers.get(place, node) for place, node in enumerate(nodes)]
        launches = _launches(found, ends)
        made = [*launches.nodes, *transfers.values()]
        latest: list[_Node] = []
        for place, node in enumerate(nodes):
            start, gap = node.key[0], int(found.gap[place])
            waits = [ends[each] for each in (int(found.stream[place]), int(found.other[place])) if each != NONE]
            if place in launches.of:
                waits.append(launches.of[place])
            if node.call is not None and node.type != _RECV:
                # Communication that still runs is on another stream: this one did not wait for it.
                waits += [each for each in latest if each.key[1] <= start][-1:]
                latest.append(node)
            waits = list({id(each): each for each in waits}.values())
            if gap:
                between = _Node((start - gap, start), f"gap before {node.name}", _COMPUTE, gap, GAP_KIND, waits=waits)
                made.append(between)
                waits = [between]
            node.waits = waits
            made.append(node)
        made.sort(key=lambda each: each.key)
        for number, node in enumerate(made, 1):
            node.id = number
        return made

    def _transfer(self, rank: int, place: int, node: _Node) -> _Node | None:
        """What was left of a message when its receiver had come: in traces, a message does not wait for that."""
        end = int(self.run.timed[rank].end[place])
        there = max(node.key[0], self.arrived.get((rank, place), end))
        if node.type != _RECV or there >= end:
            return None
        node.key = node.key[0], there
        return _Node((there, end), f"rest of {node.name}", _COMPUTE, end - there, TRANSFER_KIND, waits=[node])

    def _node(self, rank: int, place: int, fact: RunOpFacts, found: Dependencies) -> _Node:
        ops, call = self.run.timed[rank], self.calls.get((rank, place))
        type_ = _COMPUTE
        if call is not None:
            type_ = {MESSAGES[0]: _SEND, MESSAGES[1]: _RECV}.get(fact.type, _COLLECTIVE)
        ns = 0 if type_ == _RECV else int(found.work[place])
        key = int(ops.start[place]), int(ops.end[place])
        return _Node(key, fact.name, type_, ns, fact.kind, fact.phase, call=call, axis=fact.axis, dtype=fact.dtype)


@dataclass(frozen=True)
class _HostNodes:
    """Nodes of the host, and by op the one after which it can begin."""

    nodes: tuple[_Node, ...]
    of: Mapping[int, _Node]


def _launches(found: Dependencies, nodes: list[_Node]) -> _HostNodes:
    """The host's work as nodes: one after the other, from the end of an op that it waited for to each next launch.

    In a trace of hosts each operator has its own, since the program runs on the thread of the operator.
    """
    made: list[_Node] = []
    of: dict[int, _Node] = {}
    known = np.flatnonzero(found.host != NONE)
    before: _Node | None = None
    anchor, at = None, 0
    for place, own, until in sorted(
        zip(known.tolist(), found.anchor[known].tolist(), found.allowed[known].tolist(), strict=True),
        key=itemgetter(2, 0),
    ):
        if found.by_host[place]:
            # An operator of a host comes right after its anchor, the op before it on its thread.
            if found.host[place]:
                span = until - int(found.host[place]), until
                of[place] = _Node(span, "host: program", _COMPUTE, span[1] - span[0], HOST_KIND, waits=[nodes[own]])
                made.append(of[place])
            continue
        if before is None or own != anchor or until > at:
            fresh = before is None or own != anchor
            since = (0 if own == NONE else nodes[own].key[1]) if fresh else at
            since = min(since, until)
            waits = [nodes[own]] if fresh and own != NONE else []
            waits += [before] if before is not None else []
            before = _Node(
                (since, until), "host: launch", _COMPUTE, until - since, HOST_KIND, waits=waits, by_host=True
            )
            made.append(before)
            anchor, at = own, until
        of[place] = before
    return _HostNodes(tuple(made), of)


def _encoded(nodes: Sequence[_Node], run: StoredRun, rank: int, number: int) -> bytes:
    """The file of a rank."""
    ns = np.array([each.ns for each in nodes], np.int64)
    micros = whole_micros(ns, np.array([each.type == _COMPUTE for each in nodes], bool)).tolist()
    head = pb.GlobalMetadata(version=VERSION)
    head.attr.add(name="run", string_val=run.id)
    head.attr.add(name="recorded_rank", int32_val=rank)
    head.attr.add(name="rank", int32_val=number)
    out = io.BytesIO()
    serialize_length_prefixed(head, out)
    for each, whole in zip(nodes, micros, strict=True):
        node = pb.Node(id=each.id, name=node_name(each.name, each.type), type=NODE_TYPES[each.type])
        node.duration_micros = whole
        node.data_deps.extend(sorted(wait.id for wait in each.waits))
        _describe(node, each)
        node.attr.add(name="duration_ns", int64_val=each.ns)
        serialize_length_prefixed(node, out)
    return out.getvalue()


def _describe(node: "pb.Node", each: _Node) -> None:
    """The attributes of a node. Sizes that were not recorded are 1, which readers require."""
    node.attr.add(name="is_cpu_op", bool_val=each.by_host)
    if each.type == _COMPUTE or each.call is None:
        node.attr.add(name="num_ops", int64_val=1)
        node.attr.add(name="tensor_size", uint64_val=1)
    else:
        if each.type == _COLLECTIVE:
            node.attr.add(name="comm_type", int64_val=COMM_TYPES[each.kind])
        node.attr.add(name="comm_size", int64_val=each.call.size)
    for name in ("phase", "kind", "axis", "dtype"):
        if getattr(each, name):
            node.attr.add(name=name, string_val=getattr(each, name))
    if each.call is not None and each.type == _COLLECTIVE:
        node.attr.add(name="pg_name", string_val=str(each.call.group))
    elif each.call is not None:
        node.attr.add(name="comm_dst" if each.type == _SEND else "comm_src", int32_val=each.call.peer)
        node.attr.add(name="comm_tag", int32_val=each.call.tag)


def _class(place: int, rank: int, data: bytes, nodes: int) -> ClassTraces:
    """A rank as a class of its own: its bytes are one template, and no byte of it is another rank's."""
    none = np.zeros(0, np.int32)
    encoded = EncodedClass(
        width=np.array([1], np.int64),
        data=np.frombuffer(data, np.uint8),
        data_starts=np.array([0, len(data)], np.int64),
        slots=none, slot_refs=none, slot_offsets=none, slot_starts=np.zeros(2, np.int64),
        patches=none, patch_sources=none, patch_starts=np.zeros(2, np.int64),
        tasks=np.zeros(1, np.int32),
        references=np.zeros((1, 1), np.int64),
    )  # fmt: skip
    facts = {"class": place, "recorded": rank, "ranks": str(place), "nodes": nodes, "bytes": encoded.size,
             "encoding": encoded.digest}  # fmt: skip
    return ClassTraces(facts, encoded, RankBytes(np.array([place], np.int64), np.zeros((1, 1), np.uint8)))
