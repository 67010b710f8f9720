"""`validate`: a directory of traces, of stagedb or another tool, against every rule that simulators rely on."""

import heapq
import itertools
import math
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from stagedb.collectives import SIMULATED
from stagedb.errors import StagedbError, UsageError
from stagedb.files import is_directory, path_text, read_document, shown
from stagedb.mentions import OPTIONS, Word
from stagedb.systems.group_placement import ring_order
from stagedb.traces import chakra_pb2 as pb
from stagedb.traces.bundle import CHECKSUMS, file_crc, read_checksums
from stagedb.traces.formats import FORMATS, FoundTraces, TraceFormat
from stagedb.traces.rank_sets import parse_ranks
from stagedb.traces.trace_reading import TraceColumns, TraceError
from stagedb.traces.trace_rules import (
    MOST_KEPT,
    UNKNOWN,
    Envelope,
    Fault,
    FaultKind,
    FaultList,
    Groups,
    check_groups,
    check_matching,
    check_messages,
    check_rank,
    check_timed,
    group_of,
)
from stagedb.traces.trace_set import MANIFEST

# Traces run in a simulator's order, without a clock: checks that every node of every rank ends.
#
# The ready node with the smallest id of a rank goes first. There is one slot for compute, one for collectives and sends
# (a collective that waits for its members holds it), and any number of receives. Collectives are matched by a counter
# for each group. Receives are matched with the sends of the same source, destination and tag, k-th to k-th.


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


# Rules that a simulator's inputs must satisfy next to the traces, where `network.yml` and `system.json` are there.
#
# They find what ASTRA-sim runs without a complaint, and what then means something else than the traces and the network.

NETWORK, SYSTEM = "network.yml", "system.json"

TOPOLOGIES = ("Ring", "Switch", "FullyConnected")


_IMPLEMENTATION = re.compile(
    r"ring|oneRing|doubleBinaryTree|halvingDoubling|oneHalvingDoubling|(?P<one>oneD|d)irect(?P<window>\d*)"
)


@dataclass(frozen=True)
class _Network:
    """The levels of `network.yml`, innermost first: the kind and the members of each."""

    kinds: tuple[str, ...]
    sizes: tuple[int, ...]


def check_bundle(directory: Path, traces: Mapping[int, TraceColumns], groups: Groups, world: int) -> Iterator[Fault]:
    """The faults of a simulator's inputs; none where there are no such files.

    directory: of the set. traces: by rank. world: the number of ranks.
    """
    if not (directory / NETWORK).is_file() or not (directory / SYSTEM).is_file():
        return
    try:
        described = read_document(directory / NETWORK, "network")
        system = read_document(directory / SYSTEM, "system")
        network = _network(described)
    except UsageError as error:
        yield _fault("network", str(error))
        return
    if math.prod(network.sizes) != world:
        sizes = " x ".join(map(str, network.sizes))
        yield _fault("network", f"{NETWORK} has {sizes} = {math.prod(network.sizes)} ranks, and the set has {world}")
        return
    if not isinstance(system, dict):
        yield _fault("implementation", f"{SYSTEM} is no mapping")
        return
    yield from _check_implementations(system, network)
    yield from _check_durations(system, traces)
    yield from _check_rings(groups, network)


def _fault(rule: str, message: str) -> Fault:
    return Fault(None, None, "", rule, message)


def _network(described: Any) -> _Network:
    """The levels. UsageError for what the simulator's parser refuses."""
    lists: dict[str, Any] = {}
    for name in ("topology", "npus_count", "bandwidth", "latency"):
        lists[name] = described.get(name) if isinstance(described, dict) else None
        if not isinstance(lists[name], list) or not lists[name]:
            raise UsageError(f"{NETWORK} has no list of {name}")
        if len(lists[name]) != len(lists["topology"]):
            raise UsageError(f"{NETWORK} has {len(lists['topology'])} topologies and {len(lists[name])} of {name}")
    for kind in lists["topology"]:
        if kind not in TOPOLOGIES:
            raise UsageError(f"{NETWORK} has the topology {shown(kind)}, which is not {', '.join(TOPOLOGIES)}")
    for name, least, takes in (("npus_count", 2, int), ("bandwidth", 0, float | int), ("latency", 0, float | int)):
        for value in lists[name]:
            number = isinstance(value, takes) and not isinstance(value, bool)
            if not number or value < least or (name == "bandwidth" and value == 0):
                raise UsageError(f"{NETWORK} has the {name} {shown(value)}")
    return _Network(tuple(lists["topology"]), tuple(lists["npus_count"]))


def _check_implementations(system: Mapping[str, Any], network: _Network) -> Iterator[Fault]:
    """One a level, or a single one for all ranks together. To all at once only where each has a link to each other."""
    for collective in SIMULATED:
        name = f"{collective}-implementation"
        words = system.get(name)
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            yield _fault("implementation", f"{SYSTEM} has no list {name}")
            continue
        single = len(words) == 1 and words[0].startswith("one")
        if len(words) != len(network.sizes) and not single:
            yield _fault(
                "implementation", f"{name} has {len(words)} entries, and {NETWORK} {len(network.sizes)} levels"
            )
            continue
        for word, kind in zip(words, network.kinds, strict=False):
            match = _IMPLEMENTATION.fullmatch(word)
            if match is None:
                yield _fault("implementation", f"{name} has {shown(word)}, which the simulator does not know")
            elif match["one"] and not match["window"] and (kind != "FullyConnected" or single):
                what = "sends to all at once, each at the whole bandwidth of a link"
                yield _fault("implementation", f"{name} has {word} on {kind}: it {what}")


def _check_durations(system: Mapping[str, Any], traces: Mapping[int, TraceColumns]) -> Iterator[Fault]:
    """The simulator takes durations only without a roofline, and without one nothing else."""
    roofline = bool(system.get("roofline-enabled", 0))
    for rank, trace in traces.items():
        computes = [at for at, kind in enumerate(trace.types) if kind == pb.COMP_NODE]
        if not computes:
            continue
        timed = any(trace.micros[at] or trace.attributes["duration_ns"][at] is not None for at in computes)
        if timed and roofline:
            yield Fault(rank, None, "", "roofline", f"{SYSTEM} has roofline-enabled 1, so that durations are ignored")
            return
        if not timed and not roofline:
            reason = f"{SYSTEM} has roofline-enabled 0, and no compute node has a duration: each would take 1 ns"
            yield Fault(rank, None, "", "roofline", reason)
            return


def _check_rings(groups: Groups, network: _Network) -> Iterator[Fault]:
    """Between two ranks the simulator takes the innermost level on which they differ, and hides the outer ones."""
    if len(network.sizes) == 1:
        return
    for group, members in groups.items():
        if any(not 0 <= rank < math.prod(network.sizes) for rank in members):
            continue
        hidden = _hidden(members, network.sizes)
        if hidden and hidden > _hidden(ring_order(members, network.sizes), network.sizes):
            yield _fault(
                "ring",
                f"the list of group {group} has {hidden} steps that change an inner and an outer level of the network, "
                "and the simulator sends them over the inner one: order it so that each step changes one level",
            )


def _hidden(members: Sequence[int], sizes: Sequence[int]) -> int:
    """Steps of a list that change several levels."""
    return sum(_changed_dimensions(one, other, sizes) > 1 for one, other in pairwise(members))


def _changed_dimensions(one: int, other: int, sizes: Sequence[int]) -> int:
    count = 0
    for size in sizes:
        count += one % size != other % size
        one, other = one // size, other // size
    return count


_LARGEST = 64 << 20
_MOST_RANKS = 1 << 24
_RANK = re.compile(r"\.([0-9]{1,9})\.[a-z]")


@dataclass(frozen=True)
class Report:
    """The result of validation: a set without `faults` is sound.

    faults: broken rules, what hangs a simulator first; at most `trace_faults.MOST_KEPT` are listed.
    conventions: where a set of another tool is not as stagedb writes its own. Simulators run it all the same. In a set
        with stagedb's manifest these are faults.
    kinds, convention_kinds: the same, one entry a kind, with all of them counted.
    files, nodes: how many were read. world: the number of ranks of the set.
    replayed: the set ran to its end as in a simulator. False if no replay was requested, if a rank is missing, or if a
        rule is broken.
    """

    faults: tuple[Fault, ...]
    conventions: tuple[Fault, ...]
    kinds: tuple[FaultKind, ...]
    convention_kinds: tuple[FaultKind, ...]
    files: int
    nodes: int
    world: int
    replayed: bool

    @property
    def counted(self) -> int:
        """How many faults were found, listed or not."""
        return sum(kind.count for kind in self.kinds)

    @property
    def left_out(self) -> int:
        """How many places of faults were found that are not listed in `faults` and `conventions`."""
        conventions = sum(kind.count for kind in self.convention_kinds)
        return self.counted + conventions - len(self.faults) - len(self.conventions)

    @property
    def summary(self) -> str:
        """One line: how much was checked, and how."""
        ranks = f"{self.files} ranks" if self.files == self.world else f"{self.files} of {self.world} ranks"
        return f"{ranks}, {self.nodes:,} nodes, every rule{' and a replay' if self.replayed else ''}"


def validate_traces(
    directory: Path,
    *,
    replayed: bool = True,
    inputs: bool = True,
    own: bool = False,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Report:
    """Check every trace of a directory. UsageError if there is none.

    If the manifest describes a slice, the ranks of the slice are checked, and there is no replay.

    replayed: also run the set as a simulator would. inputs: also check those of a simulator. own: stagedb wrote the
    set; a set with its manifest is taken as its own in any case. progress: called with the number of traces that are
    checked, and of all.
    """
    format, on_disk = _found(directory)
    files, prefix = on_disk.read, on_disk.prefix
    faults = FaultList(own=own or (directory / MANIFEST).exists(), recorded=_is_recorded(directory))
    if faults.add(_changed_files(directory)):
        # All that the rules would find in a file that was changed follows from the change.
        return _report(faults, files=len(files), nodes=0, world=len(files), replayed=False)
    world, wanted, fault = _wanted(directory, files)
    if fault is not None:
        faults.add([fault])
    missing = (rank for rank in wanted if rank not in files)
    faults.add(
        Fault(rank, None, "", "files", f"{format.place(prefix, rank)} is missing")
        for rank in itertools.islice(missing, MOST_KEPT)
    )
    further = sum(1 for _ in missing)
    if further:
        faults.add([Fault(None, None, "", "files", f"{further:,} further files are missing")])
    try:
        groups = groups_file(directory / f"{prefix}.json")
    except StagedbError as error:
        groups = {}
        faults.add([Fault(None, None, "", "group", str(error))])
    traces: dict[int, TraceColumns] = {}
    for done, (rank, read) in enumerate(sorted(files.items())):
        progress(done, len(files))
        try:
            traces[rank] = read()
        except TraceError as error:
            faults.add([Fault(rank, None, "", "framing", str(error))])
    progress(len(files), len(files))
    # A job of one rank has no network, and so no inputs of a simulator.
    if inputs and world > 1:
        faults.add(check_bundle(directory, traces, groups, world))
    runs = replayed and len(traces) == world
    # A fault in the rules also breaks a replay, and the replay would report less about it.
    broken = _rule_faults(traces, groups, world)
    if not (directory / f"{prefix}.json").exists():
        broken = _without_groups(f"{prefix}.json", broken)
    if not faults.add(broken) and runs:
        faults.add(replay(traces, groups))
    nodes = sum(map(len, traces.values()))
    return _report(faults, files=len(files), nodes=nodes, world=world, replayed=runs and not faults.unsound)


def _is_recorded(directory: Path) -> bool:
    """Whether a set is of a run that was recorded, by its manifest."""
    try:
        manifest = read_document(directory / MANIFEST, "manifest", most=_LARGEST)
    except UsageError:
        return False
    return isinstance(manifest, dict) and "run" in manifest


def _report(faults: FaultList, *, files: int, nodes: int, world: int, replayed: bool) -> Report:
    return Report(
        faults.kept(unsound=True),
        faults.kept(unsound=False),
        faults.kinds(unsound=True),
        faults.kinds(unsound=False),
        files,
        nodes,
        world,
        replayed,
    )


def _changed_files(directory: Path) -> Iterator[Fault]:
    """Files that are not as they were written, by the set's checksums; none for a set without them."""
    path = directory / CHECKSUMS
    if not path.is_file():
        return
    try:
        known = read_checksums(path)
    except UsageError as error:
        yield Fault(None, None, "", "checksum", str(error))
        return
    for name, crc in known.items():
        rank = _rank_of(name)
        try:
            actual = file_crc(directory / name)
        except FileNotFoundError:
            if rank is None:
                yield Fault(None, None, "", "files", f"{name} is missing")
            continue  # the ranks that are missing are named together
        except OSError as error:
            yield Fault(rank, None, "", "files", f"{name} cannot be read: {error.strerror}")
            continue
        if actual != crc:
            yield Fault(
                rank,
                None,
                "",
                "checksum",
                f"{name} was changed after it was written: `{OPTIONS.word(Word('resume', True))}` mends it",
            )
    for name in sorted({each.name for each in directory.iterdir()} - known.keys()):
        rank = _rank_of(name)
        if rank is not None:
            yield Fault(rank, None, "", "checksum", f"{name} has no checksum in {CHECKSUMS}")


def _rank_of(name: str) -> int | None:
    """The rank of a trace's file."""
    match = _RANK.search(name)
    return int(match[1]) if match else None


def _rule_faults(traces: Mapping[int, TraceColumns], groups: Groups, world: int) -> Iterator[Fault]:
    yield from check_groups(groups, world)
    for rank, trace in traces.items():
        yield from check_rank(rank, trace, groups, world)
    yield from check_timed(traces)
    yield from check_matching(traces, groups)
    yield from check_messages(traces)


def _without_groups(name: str, faults: Iterator[Fault]) -> Iterator[Fault]:
    """One fault of a set without its file of groups, in place of one a collective."""
    unknown = 0
    for fault in faults:
        if fault.rule == "group" and fault.message.endswith(UNKNOWN):
            unknown += 1
        else:
            yield fault
    if unknown:
        holds = 'the ranks of each communicator group ({"1": [0, 1], ...})'
        reason = f"{name} is missing, the file with {holds} that {unknown:,} collectives name"
        yield Fault(None, None, "", "group", reason)


def _found(directory: Path) -> tuple[TraceFormat, FoundTraces]:
    """The traces of a directory, and their format. UsageError if there are none in a readable format."""
    if not is_directory(directory):
        what = "is a file, not a directory" if directory.exists() else "does not exist, so it is not a directory"
        raise UsageError(
            f"{path_text(directory)} {what}: `validate` takes a directory of traces, of any tool"
            + (f", such as {path_text(directory.parent)}" if directory.exists() else "")
        )
    readable = [(each, each.find) for each in FORMATS.values() if each.find is not None]
    for format, find in readable:
        found = find(directory)
        if found is not None:
            return format, found
    places = " or ".join(format.what.format(name="NAME").rpartition(": ")[2] for format, _ in readable)
    names = sorted(each.name for each in directory.iterdir())
    has = f"it has {shown(', '.join(names))}: rename what is a trace" if names else "it is empty"
    raise UsageError(f"{path_text(directory)} holds no traces ({places}); {has}")


def _wanted(directory: Path, files: Mapping[int, object]) -> tuple[int, Sequence[int], Fault | None]:
    """The number of ranks, and the ranks that should be there: all, unless the manifest describes a slice.

    A set of another program has no manifest; one that cannot be read is a fault. UsageError for a rank that no set has.
    """
    least = max(files) + 1
    if least > _MOST_RANKS:
        raise UsageError(
            f"{path_text(directory)} has a trace of rank {least - 1}, and a set has at most {_MOST_RANKS:,} ranks, "
            "from 0 on: rename the file"
        )
    if not (directory / MANIFEST).exists():
        return least, range(least), None
    try:
        manifest = read_document(directory / MANIFEST, "manifest", most=_LARGEST)
        world, only = manifest["world"], manifest.get("only")
        if type(world) is not int or not least <= world <= _MOST_RANKS:
            raise UsageError(f"a world of {shown(world)} ranks, and the set has rank {least - 1}")
        chosen = range(world) if only is None else sorted({*parse_ranks(only, world).tolist()})
    except (LookupError, TypeError, AttributeError, UsageError) as error:
        reason = f"{MANIFEST} does not describe the set: {shown(str(error))}"
        return least, range(least), Fault(None, None, "", "manifest", reason)
    return world, chosen, None


def groups_file(path: Path) -> dict[int, list[int]]:
    """The communicator groups of a set; empty if it has no file of them."""
    if not path.exists():
        return {}
    try:
        content = read_document(path, "communicator groups", most=_LARGEST)
        return {int(group): [int(rank) for rank in members] for group, members in content.items()}
    except (ValueError, TypeError, AttributeError, UsageError) as error:
        raise StagedbError(f'{path.name} is not {{"<id>": [ranks]}}: {error}') from None
