"""Rules that a simulator's inputs must satisfy next to the traces, where `network.yml` and `system.json` are there.

They find what ASTRA-sim runs without a complaint, and what then means something else than the traces and the network.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from stagedb.collectives import SIMULATED
from stagedb.errors import UsageError
from stagedb.files import read_document, shown
from stagedb.systems.group_placement import ring_order
from stagedb.traces import chakra_pb2 as pb
from stagedb.traces.trace_faults import Fault
from stagedb.traces.trace_reading import TraceColumns
from stagedb.traces.trace_rules import Groups

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
    return sum(_changed(one, other, sizes) > 1 for one, other in pairwise(members))


def _changed(one: int, other: int, sizes: Sequence[int]) -> int:
    count = 0
    for size in sizes:
        count += one % size != other % size
        one, other = one // size, other // size
    return count
