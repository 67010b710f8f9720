"""Rules that a trace must satisfy so that simulators run it.

The rules of one rank need only its file. Those across ranks also need the communicator groups and the other members'
files. Every rule has a name and its requirement here.
"""

import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import rustworkx

from stagedb.collectives import SIMULATED
from stagedb.files import shown
from stagedb.traces import chakra_pb2 as pb
from stagedb.traces.trace_reading import TraceColumns

# Faults of trace sets: the rules, how bad a broken one is, and faults of one kind counted together.
#
# A rule of `RULES` is what simulators rely on: a set that breaks one hangs, ends early or simulates something else.
# A rule of `CONVENTIONS` is stagedb's own style: simulators run a set of another tool without it.

RULES: Mapping[str, str] = {
    "files": "ranks 0..N-1 without a gap",
    "checksum": "every file is as it was written, by the set's checksums",
    "manifest": "the manifest describes the set",
    "framing": "a stream of length-prefixed messages: metadata, then nodes",
    "cycle": "no node waits for itself",
    "deps": "dependencies name other nodes of the file, each once",
    "root": "some node waits for nothing",
    "message": "sends and receives agree in tag, ends and size, one for one",
    "group": "a collective's group exists, has the rank in it, and has more than one member",
    "matching": "members of a group issue the same collectives in the same order with the same size",
    "replay": "run in issue order, every node of every rank ends",
    "id": "ids are unique",
    "type": "only compute, collective, send and receive nodes",
    "collective": "collectives have a simulated type and a size of at least 1 byte (an all-gather 256)",
    "attribute": "attributes that simulators read have the types that they want, each once",
    "compute": "compute nodes have what times them: num_ops and tensor_size of at least 1, or a duration",
    "network": "the simulator's network has a kind, 2 ranks or more, a rate and a latency a level, and the set's ranks",
    "implementation": "each collective has an implementation a level, which suits the kind of the level",
    "roofline": "durations are in the traces where the simulator has no roofline, and only there",
    "ring": "a step of a group's list changes one level of the simulator's network, where it can",
}
"""What each rule requires. What hangs a simulator comes first."""

OVERLAPS = "chain"

CONVENTIONS: Mapping[str, str] = {
    OVERLAPS: "a rank's collectives and sends wait for each other in issue order, so that none changes it",
    "order": "ids are from 1 on and ascend in issue order",
    "counts": "compute nodes have num_ops and tensor_size, so that a roofline can time them",
    "duration": "every node has a duration_ns or none has; duration_micros is it in whole microseconds",
    "name": "names carry the node's type and have no comma and no =, as the Chakra timeline tool wants",
    "label": "is_cpu_op is false but on nodes of a host, and attributes that stagedb alone reads have its types",
}
"""What stagedb's own traces have in addition. Sets of other tools run without it."""

_SEVERITY = {rule: place for place, rule in enumerate((*RULES, *CONVENTIONS))}

MOST_KEPT = 100_000
"""Faults that a report lists; all are counted."""

PLACES = 3
"""First places of each kind of fault."""


@dataclass(frozen=True)
class Fault:
    """A broken rule: its place, and the fault.

    rank: the rank whose file has it; None for a fault of the set.
    node: the node's id; None for a fault of a whole file.
    name: the node's name.
    rule: a name of `RULES` or `CONVENTIONS`.
    message: the fault in words, with its values.
    """

    rank: int | None
    node: int | None
    name: str
    rule: str
    message: str

    @property
    def place(self) -> str:
        """The fault's place in words, such as `rank 0 node 17`."""
        parts = [f"{word} {value}" for word, value in (("rank", self.rank), ("node", self.node)) if value is not None]
        return " ".join(parts) or "the set"


@dataclass(frozen=True)
class FaultKind:
    """Faults that differ in their places and values alone.

    rule: a name of `RULES` or `CONVENTIONS`.
    count: how many there are. ranks: how many ranks have one.
    first: the first of them, `PLACES` at most.
    """

    rule: str
    count: int
    ranks: int
    first: tuple[Fault, ...]

    @property
    def message(self) -> str:
        """The first fault in words."""
        return self.first[0].message

    @property
    def places(self) -> str:
        """The first places in words."""
        return ", ".join(fault.place for fault in self.first)


@dataclass
class _Kind:
    count: int = 0
    ranks: set[int | None] = field(default_factory=set)
    first: list[Fault] = field(default_factory=list)


class FaultList:
    """Faults as they are found: each counted by its kind, the first `MOST_KEPT` of each half kept.

    own: stagedb wrote the set, so that a broken convention is a fault too. recorded: of a run that was recorded, whose
    collectives may overlap.
    """

    def __init__(self, *, own: bool, recorded: bool = False) -> None:
        self.unsound = False
        """Whether any fault was found that is not a mere convention."""
        self._faulty = {*RULES, *(CONVENTIONS if own else ())} - ({OVERLAPS} if recorded else set())
        self._kinds: dict[tuple[str, str], _Kind] = {}
        self._kept: dict[bool, list[Fault]] = {True: [], False: []}

    def add(self, faults: Iterable[Fault]) -> bool:
        """Count faults. True if one of these makes the set unsound."""
        unsound = False
        for fault in faults:
            bad = self._unsound(fault.rule)
            unsound = unsound or bad
            kind = self._kinds.setdefault((fault.rule, _wording(fault.message)), _Kind())
            kind.count += 1
            kind.ranks.add(fault.rank)
            if len(kind.first) < PLACES:
                kind.first.append(fault)
            if len(self._kept[bad]) < MOST_KEPT:
                self._kept[bad].append(fault)
        self.unsound = self.unsound or unsound
        return unsound

    def _unsound(self, rule: str) -> bool:
        return rule in self._faulty

    def kept(self, *, unsound: bool) -> tuple[Fault, ...]:
        """The faults that make the set unsound, or the broken conventions: what hangs a simulator first."""
        return tuple(sorted(self._kept[unsound], key=lambda fault: _SEVERITY[fault.rule]))

    def kinds(self, *, unsound: bool) -> tuple[FaultKind, ...]:
        """The kinds of the faults that make the set unsound, or of the broken conventions, in the order of `kept`."""
        kinds = [
            FaultKind(rule, kind.count, len(kind.ranks - {None}), tuple(kind.first))
            for (rule, _), kind in self._kinds.items()
            if self._unsound(rule) is unsound
        ]
        return tuple(sorted(kinds, key=lambda kind: _SEVERITY[kind.rule]))


_VALUE = re.compile(r"'[^']*'|\"[^\"]*\"|\S*[\d/]\S*|->")


def _wording(message: str) -> str:
    """A message without its values: faults of one wording are of one kind."""
    return " ".join(_VALUE.sub(" ", message).split())


# The order in which a rank issues its nodes: the ready one with the smallest id goes first.


def issue_order(trace: TraceColumns) -> Sequence[int]:
    """The places of a trace's nodes in issue order. Those of a cycle, which never are ready, come last."""
    ids, count = trace.ids, len(trace.ids)
    deps = [{*data, *control} for data, control in zip(trace.data_deps, trace.ctrl_deps, strict=True)]
    if all(a < b for a, b in pairwise(ids)) and all(max(own) < ids[at] for at, own in enumerate(deps) if own):
        return range(count)
    place = {node: at for at, node in enumerate(ids)}
    children: dict[int, list[int]] = {}
    waiting = [0] * count
    for at, own in enumerate(deps):
        for dep in own & place.keys():
            children.setdefault(place[dep], []).append(at)
            waiting[at] += 1
    ready = [(ids[at], at) for at in range(count) if waiting[at] == 0]
    heapq.heapify(ready)
    issued = []
    while ready:
        _, at = heapq.heappop(ready)
        issued.append(at)
        for child in children.get(at, ()):
            waiting[child] -= 1
            if waiting[child] == 0:
                heapq.heappush(ready, (ids[child], child))
    return [*issued, *(at for at in range(count) if waiting[at] > 0)]


COMM_TYPES = {pb.CollectiveCommType.Value(each.comm_type): each for each in SIMULATED.values()}
"""The kinds that simulators run, by their `comm_type`."""

COMMUNICATIONS = (pb.COMM_COLL_NODE, pb.COMM_SEND_NODE)
GAP_KIND = "gap"
"""The kind of nodes of time that nothing recorded explains, in traces of a run that was recorded."""

TRANSFER_KIND = "transfer"
"""The kind of nodes of what was left of a message when its receiver came, in traces of a run that was recorded."""

HOST_KIND = "host"
"""The kind of nodes of what a processor does, in traces of a run that was recorded."""

UNREAD = ("phase", "kind", "axis", "dtype", "duration_ns")
"""Attributes that stagedb writes and simulators do not read."""

RUNNABLE = (pb.COMP_NODE, pb.COMM_COLL_NODE, pb.COMM_SEND_NODE, pb.COMM_RECV_NODE)

Groups = Mapping[int, Sequence[int]]
"""Members of each communicator group, by its id."""

UNKNOWN = "is not among the communicator groups"
"""The fault of a collective whose group the set does not describe."""


def check_rank(rank: int, trace: TraceColumns, groups: Groups, world: int) -> Iterator[Fault]:
    """The faults of one rank's trace on its own. groups: ranks by id of the group. world: ranks of the job."""
    for index, rule, message in _check_nodes(rank, trace, groups, world):
        name = "" if index is None else trace.names[index]
        yield Fault(rank, None if index is None else trace.ids[index], name, rule, message)


Found = Iterator[tuple[int | None, str, str]]


def _check_nodes(rank: int, trace: TraceColumns, groups: Groups, world: int) -> Found:
    yield from _check_ids(trace)
    yield from _check_attributes(trace)
    # Simulators do not read duration_ns.
    timed = any(trace.micros)
    for index, kind in enumerate(trace.types):
        if kind not in RUNNABLE:
            word = pb.NodeType.Name(kind) if kind in pb.NodeType.values() else f"type {kind}"
            yield index, "type", f"{word} is not simulated"
        elif kind == pb.COMP_NODE:
            yield from _check_compute(trace, index, timed=timed)
        elif kind == pb.COMM_COLL_NODE:
            yield from _check_collective(rank, trace, index, groups, world)
        else:
            yield from _check_message(rank, trace, index, world)
    yield from _check_durations(trace)
    yield from _check_dependencies(trace)


def _check_durations(trace: TraceColumns) -> Found:
    """Durations of a run, in whole microseconds alone, have no rule to break."""
    timed = trace.attributes["duration_ns"]
    if all(ns is None for ns in timed):
        return
    for index, (ns, micros) in enumerate(zip(timed, trace.micros, strict=True)):
        if ns is None:
            yield index, "duration", "duration_ns is missing, which other nodes have"
        elif ns < 0:
            yield index, "duration", f"duration_ns is {ns}"
        elif not _fits(micros, ns, computes=trace.types[index] == pb.COMP_NODE):
            yield index, "duration", f"duration_micros is {micros}, and duration_ns {ns}"


def _fits(micros: int, ns: int, *, computes: bool) -> bool:
    """Durations of compute are rounded so that they add up: each is less than a microsecond away."""
    return abs(micros * 1000 - ns) < 1000 if computes else micros == max((ns + 500) // 1000, int(ns > 0))


def _check_ids(trace: TraceColumns) -> Found:
    seen: set[int] = set()
    highest = 0
    for index, node in enumerate(trace.ids):
        if node in seen:
            yield index, "id", f"id {node} is there twice"
        elif node < 1:
            yield index, "order", f"id {node} is below 1"
        elif node < highest:
            yield index, "order", f"id {node} comes after id {highest}"
        seen.add(node)
        highest = max(highest, node)
        name, kind = trace.names[index], trace.types[index]
        if "," in name or "=" in name:
            yield index, "name", "the name has a comma or ="
        elif kind in RUNNABLE and pb.NodeType.Name(kind) not in name:
            yield index, "name", f"the name does not carry {pb.NodeType.Name(kind)}"


def _check_attributes(trace: TraceColumns) -> Found:
    for index, name, type_ in trace.mistyped:
        yield index, "label" if name in UNREAD else "attribute", f"{name} is a {type_}"
    for index, name in trace.repeated:
        yield index, "label" if name in UNREAD else "attribute", f"{name} is there twice"
    mistyped = {(index, name) for index, name, _ in trace.mistyped}
    for index, value in enumerate(trace.attributes["is_cpu_op"]):
        computes = trace.types[index] == pb.COMP_NODE
        if value and computes and trace.attributes["kind"][index] == HOST_KIND:
            continue
        if value is not False and (index, "is_cpu_op") not in mistyped:
            # ASTRA-sim runs a compute node that has is_cpu_op, but never issues a communication node that has it.
            rule = "label" if computes else "attribute"
            yield index, rule, f"is_cpu_op is {'missing' if value is None else 'true'}"


def _check_compute(trace: TraceColumns, index: int, *, timed: bool) -> Found:
    """timed: nodes of the trace have durations, as those of a measured run have, so that no roofline is needed."""
    for name in ("num_ops", "tensor_size"):
        value = trace.attributes[name][index]
        if value is None or value < 1:
            missing = f"{name} is {'missing' if value is None else value}"
            yield index, "counts" if timed else "compute", missing if timed else f"{missing}, and there is no duration"


def _check_collective(rank: int, trace: TraceColumns, index: int, groups: Groups, world: int) -> Found:
    kind, size = trace.attributes["comm_type"][index], trace.attributes["comm_size"][index]
    if kind not in COMM_TYPES:
        yield index, "collective", f"comm_type is {'missing' if kind is None else kind}"
    least = COMM_TYPES[kind].smallest if kind in COMM_TYPES else 1
    if size is None or size < least:
        yield index, "collective", f"comm_size is {'missing' if size is None else size}, not {least} bytes or more"
    text = trace.attributes["pg_name"][index]
    group = group_of(text)
    if group is None:
        yield index, "group", f"pg_name {shown(text)} is not a decimal integer"
    elif group == 0:
        if world < 2:
            yield index, "group", "the group of all ranks has one member"
    elif group not in groups:
        yield index, "group", f"group {group} {UNKNOWN}"
    elif rank not in groups[group]:
        yield index, "group", f"rank {rank} is not in group {group}"


def group_of(pg_name: str | None) -> int | None:
    """The group that a collective names. 0 is all ranks; None for a name of no group.

    pg_name: the attribute of the node; None: it has none.
    """
    if pg_name in (None, ""):
        return 0
    return int(pg_name) if pg_name.isascii() and pg_name.isdigit() else None


def _check_message(rank: int, trace: TraceColumns, index: int, world: int) -> Found:
    peer_name = "comm_dst" if trace.types[index] == pb.COMM_SEND_NODE else "comm_src"
    peer = trace.attributes[peer_name][index]
    if peer is None or not 0 <= peer < world:
        yield index, "message", f"{peer_name} is {'missing' if peer is None else peer}, not a rank below {world}"
    elif peer == rank:
        yield index, "message", "the rank sends to itself"
    size, tag = trace.attributes["comm_size"][index], trace.attributes["comm_tag"][index]
    if size is None or size < 1:
        yield index, "message", f"comm_size is {'missing' if size is None else size}"
    if tag is None or tag < 0:
        yield index, "message", f"comm_tag is {'missing' if tag is None else tag}"


def _check_dependencies(trace: TraceColumns) -> Found:
    known = set(trace.ids)
    forward_only = True
    for index, node in enumerate(trace.ids):
        deps = (*trace.data_deps[index], *trace.ctrl_deps[index])
        for dep, count in Counter(deps).items():
            if dep not in known:
                yield index, "deps", f"depends on {dep}, which is not in the file"
            elif dep == node:
                yield index, "deps", "depends on itself"
            elif count > 1:
                yield index, "deps", f"names {dep} {count} times"
            forward_only = forward_only and dep < node
    if trace.ids and not any(not d and not c for d, c in zip(trace.data_deps, trace.ctrl_deps, strict=True)):
        yield None, "root", "every node waits for another"
    if not forward_only:
        yield from _check_cycle(trace)
    elif len(known) == len(trace.ids) and all(a < b for a, b in pairwise(trace.ids)):
        yield from _check_chain(trace)


def _check_cycle(trace: TraceColumns) -> Found:
    index_of = {node: index for index, node in enumerate(trace.ids)}
    graph = rustworkx.PyDiGraph()
    graph.add_nodes_from(range(len(trace.ids)))
    for index, node in enumerate(trace.ids):
        for dep in {*trace.data_deps[index], *trace.ctrl_deps[index]}:
            if dep in index_of and dep != node:
                graph.add_edge(index_of[dep], index, None)
    cycle = rustworkx.digraph_find_cycle(graph)
    if cycle:
        path = " -> ".join(str(trace.ids[a]) for a, _ in cycle)
        yield cycle[0][0], "cycle", f"waits for itself: {path} -> {trace.ids[cycle[0][0]]}"


def _check_chain(trace: TraceColumns) -> Found:
    """Ids ascend and dependencies point back, so a node's latest communication is known when the node is reached."""
    latest: dict[int, int] = {}
    count = 0
    for index, node in enumerate(trace.ids):
        before = max((latest.get(dep, 0) for dep in (*trace.data_deps[index], *trace.ctrl_deps[index])), default=0)
        if trace.types[index] in COMMUNICATIONS:
            if before < count:
                yield index, "chain", "does not wait for the collective or send before it"
            count += 1
            before = count
        latest[node] = before


def check_timed(traces: Mapping[int, TraceColumns]) -> Iterator[Fault]:
    """A fault for each rank whose trace has no durations, if other ranks have some. traces: by rank."""
    timed = {rank: any(ns is not None for ns in trace.attributes["duration_ns"]) for rank, trace in traces.items()}
    if any(timed.values()):
        for rank in (rank for rank, has_durations in timed.items() if not has_durations):
            yield Fault(rank, None, "", "duration", "no node has a duration_ns, and other ranks' nodes have")


def check_groups(groups: Groups, world: int) -> Iterator[Fault]:
    """The faults of the communicator groups themselves.

    world: ranks of the job.
    """
    for group, members in groups.items():
        if group < 1:
            yield Fault(None, None, "", "group", f"group id {group} is below 1")
        if len(set(members)) != len(members):
            yield Fault(None, None, "", "group", f"group {group} names a rank twice")
        if len(members) < 2:
            yield Fault(None, None, "", "group", f"group {group} has {len(members)} member(s)")
        outside = [rank for rank in members if not 0 <= rank < world]
        if outside:
            yield Fault(None, None, "", "group", f"group {group} names rank {outside[0]}, the world has {world}")


def check_matching(traces: Mapping[int, TraceColumns], groups: Groups) -> Iterator[Fault]:
    """Each group's members compared with its first: the same collectives in the same order with the same sizes.

    The order is that of the issue, and not that of the file. traces: by rank.
    """
    issued: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, trace in traces.items():
        for index in issue_order(trace):
            if trace.types[index] == pb.COMM_COLL_NODE:
                group = group_of(trace.attributes["pg_name"][index])
                if group is not None:
                    issued[group][rank].append(index)
    for group, by_rank in issued.items():
        members = [rank for rank in groups.get(group, ()) if rank in traces] if group else sorted(traces)
        if len(members) > 1:
            first = members[0]
            for rank in members[1:]:
                yield from _compare(group, (first, by_rank[first]), (rank, by_rank[rank]), traces)


def _compare(
    group: int, first: tuple[int, list[int]], other: tuple[int, list[int]], traces: Mapping[int, TraceColumns]
) -> Iterator[Fault]:
    def shown(rank: int, index: int) -> tuple[int, int]:
        attributes = traces[rank].attributes
        return attributes["comm_type"][index], attributes["comm_size"][index]

    rank, own = other
    trace = traces[rank]
    for place, (a, b) in enumerate(zip(first[1], own, strict=False)):
        theirs, ours = shown(first[0], a), shown(rank, b)
        if theirs != ours:
            message = f"collective {place + 1} of group {group} is {ours}, rank {first[0]}'s is {theirs} (type, bytes)"
            yield Fault(rank, trace.ids[b], trace.names[b], "matching", message)
            return
    if len(first[1]) != len(own):
        message = f"issues {len(own)} collectives in group {group}, rank {first[0]} issues {len(first[1])}"
        yield Fault(rank, None, "", "matching", message)


Envelope = tuple[int, int, int]
"""Source, destination, tag."""


def check_messages(traces: Mapping[int, TraceColumns]) -> Iterator[Fault]:
    """Sends and receives between ranks whose files exist, k-th to k-th in issue order.

    traces: by rank. A fault is a send without its receive, the other way round, or a pair of different sizes.
    """
    sends: dict[Envelope, list[tuple[int, int]]] = defaultdict(list)
    recvs: dict[Envelope, list[tuple[int, int]]] = defaultdict(list)
    for rank, trace in traces.items():
        tags = trace.attributes["comm_tag"]
        for index in issue_order(trace):
            kind = trace.types[index]
            if kind == pb.COMM_SEND_NODE:
                sends[rank, trace.attributes["comm_dst"][index], tags[index]].append((rank, index))
            elif kind == pb.COMM_RECV_NODE:
                recvs[trace.attributes["comm_src"][index], rank, tags[index]].append((rank, index))
    for envelope in sends.keys() | recvs.keys():
        source, destination, _ = envelope
        if source in traces and destination in traces:
            yield from _pair(envelope, sends[envelope], recvs[envelope], traces)


def _pair(
    envelope: Envelope,
    sent: list[tuple[int, int]],
    received: list[tuple[int, int]],
    traces: Mapping[int, TraceColumns],
) -> Iterator[Fault]:
    source, destination, tag = envelope
    for (a, i), (b, j) in zip(sent, received, strict=False):
        out, into = traces[a].attributes["comm_size"][i], traces[b].attributes["comm_size"][j]
        if out != into:
            message = f"receives {into} bytes from rank {a} with tag {tag}, which sends {out}"
            yield Fault(b, traces[b].ids[j], traces[b].names[j], "message", message)
    if len(sent) != len(received):
        alone, other = (sent, received) if len(sent) > len(received) else (received, sent)
        rank, index = alone[len(other)]
        what = "is not received" if alone is sent else "is never sent"
        message = f"the message from rank {source} to rank {destination} with tag {tag} {what}"
        yield Fault(rank, traces[rank].ids[index], traces[rank].names[index], "message", message)
