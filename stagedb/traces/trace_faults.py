"""Faults of trace sets: the rules, how bad a broken one is, and faults of one kind counted together.

A rule of `RULES` is what simulators rely on: a set that breaks one hangs, ends early or simulates something else.
A rule of `CONVENTIONS` is stagedb's own style: simulators run a set of another tool without it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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
